"""Servers with other habits: a request made into what they would have understood of it."""
