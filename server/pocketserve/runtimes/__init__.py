"""Frameworks, a folder each, behind one small interface (`base.py`); `registry.py` finds and imports them lazily."""
