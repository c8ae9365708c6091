"""`python -m aam.tools.rocm_attention_diagnostic` is an alias of `aam check`."""

from __future__ import annotations

import sys

from aam.cli import main

if __name__ == "__main__":
    sys.exit(main(["check", *sys.argv[1:]]))
