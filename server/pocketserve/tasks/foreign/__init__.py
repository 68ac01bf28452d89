"""Configuration files that other tools write beside a model, as closed tables of the keys that matter.

``keys.py`` defines a table, ``registry.py`` lists them, and each other module holds the table of one kind of file.
"""
