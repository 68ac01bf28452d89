"""Runs models: scheduling, devices and memory.

Policies are pure; the clock is injected.
"""
