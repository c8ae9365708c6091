"""Files of a run: run folder, lock, checkpoints, and resumption from them."""
