"""One thin module a command: `run(options)`."""
