"""Transports, which only translate between bytes and ``pocketserve.api``."""
