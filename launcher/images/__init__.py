"""Images: inventory, labels, build, lock, verification and registry."""
