"""File formats of input: feature tables, Newick, distance matrices, QIIME 2 artifacts, text."""
