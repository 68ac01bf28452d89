"""SavedModels and Keras models, run by TensorFlow."""
