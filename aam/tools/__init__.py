"""Programs for a single purpose, each run with `python -m`."""
