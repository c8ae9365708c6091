"""Callbacks and loggers of the training loop."""
