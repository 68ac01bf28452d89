"""ExecuTorch programs."""
