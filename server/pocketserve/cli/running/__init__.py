"""Commands about the running server."""
