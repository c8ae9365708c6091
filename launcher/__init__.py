"""The launcher `aam-launch`: decides how to run a command of `aam` on this host, and starts it.

It needs no torch, and of `aam` it imports `aam.contract` alone.
"""
