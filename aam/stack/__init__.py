"""Acceptance of a host and an image: what is correct, fast and fits, in one file."""
