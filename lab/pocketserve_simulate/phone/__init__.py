"""A phone: real processes under the conditions of one, and the events that happen to it."""
