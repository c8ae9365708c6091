"""Several processes, one run: who is who, what they share, how they stop and die."""
