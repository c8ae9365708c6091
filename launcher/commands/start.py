"""Run a command of `aam`: plan it, then replace this process, or print the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.contract.errors import DataError, Problem
from aam.contract.files import sha256
from aam.contract.options.command_line import CONFIG, parse_known
from aam.contract.records import Mismatch, RecordEntries, convert, read_json_object
from aam.contract.version import __version__
from launcher.commands import HOST
from launcher.engines import exec_plan, shell_line
from launcher.findings import warn, warning
from launcher.host.facts import Host
from launcher.launch import gather, plan_launch, require_inputs
from launcher.plan.assembly import Plan, stack_facts
from launcher.plan.inputs import Request, request_of

PARTS = {"engine_version": "engine", "digest": "image"}
"""Fact -> the fact that it belongs to; where that differs, this one says nothing more."""


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Plan a command, then replace this process by it or print its command line."""
    request = request_of(launcher_options, argv)
    if request.value("--storage"):
        from aam.contract.preflight import require_no_password  # with gzip and shutil: 5 ms

        require_no_password(request)
    capture = launcher_options.get(HOST)  # with --dry-run alone
    if capture is None:
        require_inputs(request)
    host, plan = plan_launch(gather(request, capture or Path("/")), starting=not request.dry_run)
    warn(plan.findings)
    # The run record that --config names, if it names one.
    path: Path | None = parse_known([CONFIG], argv)[0].get(CONFIG.flag)
    path = path / "run.json" if path is not None and path.is_dir() else path
    if path is not None and path.suffix == ".json":
        warn(_differences(path, request, host, plan))
    if request.dry_run:
        print(shell_line(plan))
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    exec_plan(plan)


def _differences(file: Path, request: Request, host: Host, plan: Plan) -> Iterator[Problem]:
    """Yield a warning for each fact or input of a run record that differs in this launch."""
    remedy = "give the run.json of a run"
    record = read_json_object(file, RecordEntries, "run record", remedy)
    now, launch = stack_facts(plan, host), record.get("launch") or {}
    stated = {name: launch[name] for name in now if name in launch}
    try:
        then: dict[str, Any] = convert(stated, dict[str, str | list[str] | None], "launch")
    except Mismatch as error:
        raise DataError("The run record is damaged", f"'{file}', {error}", remedy) from error
    if record["aam"] != __version__:
        yield _other("version of aam", record["aam"], __version__)
    recorded = {entry["path"]: entry["sha256"] for entry in record.get("inputs", {}).values()}
    for spec, path in request.paths("input"):
        digest = recorded.get(str(path))
        # Of a store of `aam prepare` the header is compared; it holds the checksums of its files.
        content = path / "store.json" if path.is_dir() else path
        if digest is not None and content.is_file() and sha256(content) != digest:
            evidence = f"'{path}' has another SHA-256 than in that run"
            yield warning(f"The input of {spec.flag} has changed", evidence)
    for facts in (now, then):
        if facts.get("gpus"):  # the same GPUs may be at other places
            facts["gpus"] = [gpu.partition(" at ")[0] for gpu in facts["gpus"]]
    for name, value in now.items():
        field = PARTS.get(name, name)
        comparable = name in then and (value is not None or name != "engine_version")
        if comparable and then[name] != value and (field == name or then.get(field) == now[field]):
            yield _other(name.replace("_", " "), then[name], value)


def _other(name: str, then: object, now: object) -> Problem:
    texts = [", ".join(v) if isinstance(v, list) else v for v in (then, now)]
    evidence = f"{texts[0] or 'none'} then, {texts[1] or 'none'} now"
    return warning(f"Another {name}", evidence, "the results may differ too")
