"""The server's interface, independent of the transport: one dispatch table and one file per protocol."""
