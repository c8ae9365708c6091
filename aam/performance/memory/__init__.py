"""Memory of a training step or of inference, predicted without a GPU, and the settings that fit."""
