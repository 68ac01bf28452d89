"""Language models: chats, piece by piece."""
