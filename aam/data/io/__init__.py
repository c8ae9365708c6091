"""Readers of input files: feature tables, Newick, distance matrices, QIIME 2 artifacts."""
