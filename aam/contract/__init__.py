"""Contract between `aam` and `aam-launch`: options, errors, check report, run record, files.

It needs the standard library alone, so that the launcher can import it on a host without PyTorch.
"""
