"""Side-by-side measurements. See README.md for the method."""
