"""The converters, one file each: ``CONVERTER`` and ``convert(request)``.

A tool runs in its converter's environment, which has NumPy, Pillow and the tool's own packages, but none of what the
server is installed with: of ours it imports the contract (:mod:`pocketserve_lab.convert.converter`), its neighbours,
and what reads models with NumPy alone (:mod:`pocketserve.runtimes`); and its own packages within functions.
"""
