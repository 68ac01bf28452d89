"""Shared by all commands: errors, output, progress, the log, models and connections."""
