"""Commands on the server that runs: what it holds, and its end."""
