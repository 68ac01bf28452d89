"""Tasks on sound."""
