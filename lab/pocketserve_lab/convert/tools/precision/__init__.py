"""Choose the layers that int8 leaves in floats."""
