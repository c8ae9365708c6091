"""Commands of the network: a module for each, with a function `run_COMMAND(options)`."""
