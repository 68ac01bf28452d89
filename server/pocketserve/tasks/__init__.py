"""Between raw input (a picture, a JSON document) and tensors, and from tensors to a labelled answer."""
