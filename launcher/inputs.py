"""Look at the files that a request names, before anything starts."""

from __future__ import annotations

import os

from launcher.errors import MissingInput
from launcher.plan.request import Request


def require_inputs(request: Request) -> None:
    """Check that every input is there and may be read.

    Raises:
        MissingInput: naming the option and the path.
    """
    for flag, path in request.inputs:
        if not os.path.exists(path):
            raise MissingInput(f"No file for {flag}", f"'{path}' does not exist", "check the path")
        if not os.access(path, os.R_OK):
            remedy = "ask its owner for permission to read it"
            raise MissingInput(f"No access for {flag}", f"'{path}' may not be read", remedy)
