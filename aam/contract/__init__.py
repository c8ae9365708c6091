"""The contract between `aam` and `aam-launch`: what both programs read, write and decide alike.

It needs the standard library alone, so that the launcher can import it on a host without PyTorch.
"""
