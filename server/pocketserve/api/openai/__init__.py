"""The interface that OpenAI defined, for language models and embeddings."""
