"""The life of a version: loading, use, unloading."""
