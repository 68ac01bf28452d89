"""The recipes: one file each, with ``RECIPE`` and its function.

They are listed in ``compress/registry.py``.
"""
