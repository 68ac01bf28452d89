"""Servers to compare with, one process each."""
