"""The owner's consent to run the code of models."""
