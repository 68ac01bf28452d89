"""The socket protocol: frames over TCP, from the same dispatch table as HTTP and without Flask or WSGI."""
