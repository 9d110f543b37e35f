"""Choosing devices for claims: pure functions over an immutable snapshot."""
