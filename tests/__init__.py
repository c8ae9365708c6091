"""Tests with real files; nothing of the program is patched."""
