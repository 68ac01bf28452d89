"""Packages of the frameworks, one each, behind the interfaces of `base.py`.

`registry.py` imports them on demand.
"""
