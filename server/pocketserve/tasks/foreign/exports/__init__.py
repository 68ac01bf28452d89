"""Exports of tools for training models: their files are recognised, and their settings applied."""
