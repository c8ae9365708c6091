"""Images: inventory, labels, build, record and verification."""
