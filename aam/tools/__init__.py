"""Single-purpose programs, run with `python -m`."""
