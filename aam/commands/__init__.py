"""Commands of the study: a function `run_COMMAND(options)` for each, in a module of its subject."""
