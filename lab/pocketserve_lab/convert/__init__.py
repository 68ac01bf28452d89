"""Convert models: choose tools, check and publish the result."""
