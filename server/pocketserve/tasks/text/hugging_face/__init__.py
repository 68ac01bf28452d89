"""Files that Hugging Face's libraries write beside a model of texts."""
