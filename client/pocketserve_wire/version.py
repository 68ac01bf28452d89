"""The version of the distribution and of everything that names itself on the wire."""

__version__ = "0.1.0"
