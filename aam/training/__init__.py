"""Training and using the network: losses, tasks, the loop, checkpoints, inference."""
