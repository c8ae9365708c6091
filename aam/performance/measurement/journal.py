"""Journal of the runs of a workload: every finished run is kept, so that a measurement continues.

`runs.jsonl` has one line for what is measured (workload, inputs, device, versions), then one for
each run. A measurement is a function of its runs, so it is repeated from the start, and only runs
that are not in the journal are computed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aam.console import info
from aam.contract import schema
from aam.contract.errors import CannotCreate, DataError, reason_of
from aam.contract.files import report_full_disk, require
from aam.contract.json_files import parse_json
from aam.performance.measurement.workload import (
    RunPlan,
    RunResult,
    Step,
    Workload,
    run_workload,
    step_of,
)

JOURNAL = "runs.jsonl"


@dataclass
class Runs:
    """Runs of a workload, computed once.

    Args:
        workload: program that is run.
        folder: folder of the journal, in which the run in progress has a folder of its own.
        timeout: seconds without a step after which a run counts as hanging.
        known: results by the key of their plan, those of the journal included.
    """

    workload: Workload
    folder: Path
    timeout: float
    known: dict[str, RunResult] = field(default_factory=dict)

    def run(self, plan: RunPlan) -> RunResult:
        """Return the result of a run, from the journal if it is there."""
        key = _key(plan)
        if key not in self.known:
            place = self.folder / "running"
            self.known[key] = found = run_workload(self.workload, plan, place, self.timeout)
            shutil.rmtree(place, ignore_errors=True)
            self._write(key, found)
        return self.known[key]

    def _write(self, key: str, result: RunResult) -> None:
        line = {
            "run": key,
            "failure": result.failure,
            "steps": [list(vars(step).values()) for step in result.steps],
        }
        # Opened for each run, so that every finished run is in the file if the process is killed.
        with report_full_disk(self.folder / JOURNAL), (self.folder / JOURNAL).open("a") as stream:
            stream.write(json.dumps(line) + "\n")


def open_runs(
    workload: Workload, folder: Path, timeout: float, identity: Mapping[str, Any], overwrite: bool
) -> Runs:
    """Open the journal in `folder`, or begin one.

    Args:
        workload: program that is run.
        folder: folder of the journal, which is made if it is absent.
        timeout: seconds without a step after which a run counts as hanging.
        identity: description of the measurement as JSON; that of the journal must be equal.
        overwrite: whether to replace the journal of another measurement.

    Raises:
        CannotCreate: the journal is of another measurement and `overwrite` is false, or the folder
            cannot be written to.
        DataError: the journal is damaged.
    """
    journal = folder / JOURNAL
    runs = Runs(workload, folder, timeout)
    lines = _lines(journal)
    stored: Any = lines[0] if lines else {}
    differing = [name for name in identity if stored.get(name) != identity[name]]
    if lines and differing and not overwrite:
        name = differing[0]
        raise CannotCreate(
            "The folder has measurements of something else",
            f"'{journal}' differs in {', '.join(differing)} "
            f"({name}: {json.dumps(stored.get(name))[:200]}, "
            f"now {json.dumps(identity[name])[:200]})",
            "choose another --output-dir, or add --overwrite",
        )
    if not lines or differing:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with report_full_disk(journal):
                journal.write_text(json.dumps(dict(identity)) + "\n")
        except OSError as error:
            evidence = f"'{folder}', {error.strerror}"
            raise CannotCreate(
                "The folder cannot be written to", evidence, "choose another"
            ) from error
        return runs
    for number, line in enumerate(lines[1:], start=2):
        try:
            found = schema.parse(_RUN, line, "the run")
            steps = tuple(step_of(dict(zip(_FIELDS, one, strict=True))) for one in found["steps"])
            if not steps and not found["failure"]:
                raise ValueError("it has no steps")
        except (ValueError, TypeError, OverflowError) as error:
            evidence = f"line {number} of '{journal}', {reason_of(error)}"
            raise DataError("The journal is damaged", evidence, _NEW) from error
        runs.known[found["run"]] = RunResult(steps, found["failure"])
    if runs.known:
        info(f"{len(runs.known)} runs of '{journal}' are not repeated.")
    return runs


def _lines(journal: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a journal; a killed process may have left an incomplete one."""
    if not os.path.lexists(journal):
        return []
    try:
        text = require(journal, "journal").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError("The journal cannot be read", f"'{journal}', {error}", _NEW) from error
    whole, _, rest = text.rpartition("\n")
    if rest:
        # Without the rest, or the next run would be appended to half a line.
        journal.write_text(whole + "\n" if whole else "")
    lines = enumerate(whole.split("\n") if whole else (), start=1)
    return [
        parse_json(line, dict[str, Any], "journal", f"line {number} of '{journal}'", _NEW)
        for number, line in lines
    ]


_FIELDS = tuple(Step.__dataclass_fields__)
_RUN = {"run": str, "failure": str, "steps": list[list[Any]]}
"""Schema of a run; `step_of` checks the values of a step, whose loss may be NaN."""
_NEW = "choose another --output-dir, or remove the file"


def _key(plan: RunPlan) -> str:
    return json.dumps(asdict(plan), sort_keys=True, default=str)
