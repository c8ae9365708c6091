"""Codes of nucleotides, and scales of features, for kernel, forest and network."""

VOCABULARY = ("-", "A", "C", "G", "T", "N", "?")
"""Letters by code: padding, four nucleotides, any ambiguous letter, a masked position."""

PAD, AMBIGUOUS, MASK = 0, 5, 6

BASES = 4
"""A, C, G and T: codes 1 to 4, the only codes that are predicted."""

WIDTH = 3.0
"""Differing nucleotides at which the similarity of two sequences, exp(-number / WIDTH), is 1/e."""

FINEST = 1e4
"""A relative abundance of 1/FINEST weighs log10(2), ten times as much log10(11)."""
