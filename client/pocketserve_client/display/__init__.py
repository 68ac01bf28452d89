"""Forms of answers for people."""
