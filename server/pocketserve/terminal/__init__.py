"""Errors, output, progress, log and connections, for all commands."""
