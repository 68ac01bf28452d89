"""A phone on a desktop: its cores, its memory, its look, and what Android does to the processes on it.

Nothing of the server is replaced: the same command runs as a real process, and the events are done to it from outside.
"""
