"""Runs models: who may run when, on what, and what stays in memory. Policy is pure; the clock is injected."""
