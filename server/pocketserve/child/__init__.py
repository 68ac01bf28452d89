"""Run child processes within limits, and end all of their descendants."""
