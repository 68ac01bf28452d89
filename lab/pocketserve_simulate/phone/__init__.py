"""A simulated phone: real processes under its conditions, and its events."""
