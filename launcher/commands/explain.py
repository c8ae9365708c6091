"""`aam-launch explain`: print every decision about a command without running it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher.explain import as_json, text
from launcher.input_files import require_inputs
from launcher.plan.request import parse
from launcher.planning import plan_launch


def run(argv: Sequence[str]) -> int:
    """Print the decisions for this host, or for a captured one."""
    request = parse(argv, incomplete=True)
    capture = request.launcher_options.get("--host")
    if capture is None:
        require_inputs(request)
    host, plan = plan_launch(request, Path(capture[-1] if capture else "/"))
    print(as_json(host, plan) if "--json" in request.launcher_options else text(host, plan))
    return 0
