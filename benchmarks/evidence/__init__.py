"""Measure conversions and check claims for docs/generated/evidence.md."""
