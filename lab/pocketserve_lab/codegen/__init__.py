"""Classes for apps, written from what a server says of a model: names and types that a compiler checks."""
