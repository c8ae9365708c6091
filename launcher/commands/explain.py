"""`aam-launch explain`: every decision about a command; runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher.explain import as_json, text
from launcher.input_files import require_inputs
from launcher.plan.request import parse
from launcher.planning import prepare


def run(words: Sequence[str]) -> int:
    """Print the decisions for this host, or for a captured one."""
    request = parse(words, incomplete=True)
    capture = request.own.get("--host")
    if capture is None:
        require_inputs(request)
    host, plan = prepare(request, Path(capture[-1] if capture else "/"))
    print(as_json(host, plan) if "--json" in request.own else text(host, plan))
    return 0
