"""Safe reading of checkpoints: archives, pickles and schemas, without running code."""
