"""Requests to speech models."""
