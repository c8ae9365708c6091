"""Decisions from a command line to a plan. Pure: no module reads the host."""
