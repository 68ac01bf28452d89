"""A comparison as material for a paper."""
