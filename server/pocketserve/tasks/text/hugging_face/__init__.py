"""Files that Hugging Face's libraries write beside a text model."""
