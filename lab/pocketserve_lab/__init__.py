"""Convert, compress, compare and measure models, and generate classes for apps."""
