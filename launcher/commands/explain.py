"""`aam-launch explain`: print every decision about a command without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.explain import as_json, text
from launcher.input_files import require_inputs
from launcher.plan.request import request_of
from launcher.planning import plan_launch


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Print the decisions for this host, or for a captured one."""
    request = request_of(launcher_options, argv, incomplete=True)
    capture = launcher_options.get("--host")
    if capture is None:
        require_inputs(request)
    host, plan = plan_launch(request, capture or Path("/"))
    print(as_json(host, plan) if "--json" in launcher_options else text(host, plan))
    return 0
