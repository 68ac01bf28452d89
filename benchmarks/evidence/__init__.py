"""Make models, measure them on several machines and check claims about converting: docs/generated/evidence.md."""
