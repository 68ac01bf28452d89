"""The life of a version: loaded, held while in use, unloaded when idle or when memory is needed."""
