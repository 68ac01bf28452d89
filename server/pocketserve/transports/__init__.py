"""Transports translate between bytes on a connection and the interface in ``pocketserve.api``; nothing else."""
