"""Sound of a microphone or a pipe, and captions on a terminal."""
