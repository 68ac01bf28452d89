"""Access control: tokens, pairing, and checks against web pages."""
