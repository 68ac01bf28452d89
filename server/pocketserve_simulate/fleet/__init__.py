"""Fleets: many phones on one desktop, asked the same, changed step by step, and disturbed one by one."""
