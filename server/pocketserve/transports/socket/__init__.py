"""The socket protocol: frames over TCP, with the same dispatch table as HTTP."""
