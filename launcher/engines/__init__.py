"""Engines: each turns a request into a plan, and the launcher becomes that program."""
