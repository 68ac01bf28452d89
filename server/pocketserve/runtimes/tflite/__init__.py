"""TensorFlow Lite models."""
