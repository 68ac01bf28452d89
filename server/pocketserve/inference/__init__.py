"""The way of a request to a loaded model: call, validate, compile, run, respond. There is no other."""
