"""Tasks: convert raw input to tensors, and tensors to labelled answers."""
