"""Inference: outputs, embeddings and attributions of trained networks, and their tables."""
