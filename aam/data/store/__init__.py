"""Prepared studies (stores): writing, memory-mapped reading and verification of checksums."""
