"""Generate typed classes for apps from the metadata of a server's model."""
