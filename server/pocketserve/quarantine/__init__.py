"""Unseen model files are first loaded and run in a throw-away process; what harms it is never loaded by the server."""
