"""Bounded readers of file formats that several runtimes share."""
