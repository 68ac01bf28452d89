"""The converters, one file each: ``CONVERTER`` and ``convert(request)``.

A tool runs in its converter's environment, which has NumPy, Pillow and the tool's own
packages, but not the server's. Of our code it imports the contract
(:mod:`pocketserve_lab.convert.converter`), modules of this package, and
:mod:`pocketserve.runtimes`, which reads models with NumPy alone. It imports its own
packages within functions.
"""
