"""Version of `aam` and `aam-launch`."""

__version__ = "0.1.0"
