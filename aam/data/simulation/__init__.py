"""Simulated studies with known truth: phylogeny, sequences, counts of reads and metadata."""
