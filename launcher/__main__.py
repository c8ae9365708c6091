"""`python -m launcher`, or `python PATH/launcher`: the same as the `aam-launch` command."""

import os
import sys

package = os.path.dirname(os.path.abspath(__file__))
if sys.path[0] == package:  # of `python PATH/launcher`; its modules are no modules of their own
    sys.path[0] = os.path.dirname(package)

from launcher.cli import run  # noqa: E402

run()
