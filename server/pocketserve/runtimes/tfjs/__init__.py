"""TensorFlow.js models, run by Node."""
