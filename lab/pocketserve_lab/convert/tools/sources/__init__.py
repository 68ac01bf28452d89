"""Readers of models that several converters share."""
