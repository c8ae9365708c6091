"""Training of the network: runs, fit, training loop, losses, checkpoints, observers."""
