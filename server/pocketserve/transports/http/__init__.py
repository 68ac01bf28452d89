"""HTTP: Flask for routing, waitress as the server."""
