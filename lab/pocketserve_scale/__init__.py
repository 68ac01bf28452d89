"""Serve the same models folder on other engines: several processes, other servers."""
