"""The way of a request to a loaded model: validate, compile, run, respond. There is no other."""
