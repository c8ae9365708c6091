"""QIIME 2 plugin of AAM: actions that run the program `aam` on artifacts."""

__version__ = "0.1.0"
