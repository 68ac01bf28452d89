"""The sources of the golden vectors, one module per kind.

They use the standard library only, and no code of the codec under test.
"""
