"""Servers to compare with, each a process of its own: floors as fast as Python allows, and named peers."""
