"""Scenarios: files, the apps in them, and the verdict on what was seen."""
