"""Tasks on rows of named values."""
