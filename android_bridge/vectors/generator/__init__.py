"""What the golden vectors are made from, one file per kind. Standard library only, and no code of the codec."""
