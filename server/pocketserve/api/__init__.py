"""The server's interface: a dispatch table and one file per protocol."""
