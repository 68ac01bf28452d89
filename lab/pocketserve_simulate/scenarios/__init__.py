"""Scenarios: their files, the apps in them, and the verdict on a run."""
