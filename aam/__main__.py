"""`python -m aam`: the same as the `aam` command."""

import sys

from aam.cli import main

sys.exit(main())
