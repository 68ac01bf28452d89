"""Persist data in small files of the state folder."""
