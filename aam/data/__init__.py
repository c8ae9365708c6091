"""Input data: feature tables, sequences, phylogenies, UniFrac, metadata, splits and batches."""
