"""Prepared studies: the memory-mapped folders of `aam prepare`."""
