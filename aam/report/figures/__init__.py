"""Figures of matplotlib: their style, conversion to SVG, and the functions that draw them."""
