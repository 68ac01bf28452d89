"""Finds models in a folder, reads their manifests and says which versions there are. Loads nothing."""
