"""Training of the network: pipelines, losses and targets, training loop, run files, inference."""
