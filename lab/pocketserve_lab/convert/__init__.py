"""Convert a model into another kind of file, check the result against the original, and publish it beside it."""
