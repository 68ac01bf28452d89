"""Simulate a phone and Android's events on a desktop.

Nothing of the server is replaced: the same command runs as a real process, and events
act on it from outside.
"""
