"""Attention All Microbes: transformers that read feature tables of amplicon sequence variants."""

__version__ = "0.1.0"
