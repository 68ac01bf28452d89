"""Comparison of speech models."""
