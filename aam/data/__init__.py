"""From a laboratory's files to batches: tables, sequences, trees, UniFrac, metadata, splits."""
