"""Convert speech models, which are several files and answer token by token."""
