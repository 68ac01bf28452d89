"""The converters, one file each: ``CONVERTER`` and ``convert(request)``.

A tool runs in its converter's environment, which has NumPy and the tool, but none of what the server is installed with:
it imports :mod:`pocketserve.convert.converter` and nothing else of ours, and its own packages within functions.
"""
