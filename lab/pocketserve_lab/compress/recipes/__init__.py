"""The recipes, one file each with ``RECIPE`` and its function; listed in ``compress/registry.py``."""
