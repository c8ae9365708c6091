"""Commands of the stack: a module for each, with a function `run_COMMAND(options)`."""
