"""Speech to text: the decoding of Whisper's models."""
