"""The only way from a request to a loaded model."""
