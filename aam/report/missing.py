"""What a run folder lacks for a full report, each with the command that makes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from aam.contract import run_record
from aam.contract.errors import AamError
from aam.report.base import ReportInput
from aam.report.run import Run

BASELINES = (
    ("forest", "random forest", "baseline"),
    ("kernel", "sequence kernel", "baseline-kernel"),
)
"""Member, its title in metrics.json, and the folder of each baseline."""


def missing(given: ReportInput) -> list[tuple[str, str]]:
    """Return a sentence and a command line for each part that is missing."""
    return list(_missing(given))


def _missing(given: ReportInput) -> Iterator[tuple[str, str]]:
    run = given.run
    folder = str(run.folder.resolve())
    table, metadata = _input(run, "--table"), _input(run, "--metadata")
    inputs = ["--table", table or "TABLE"]
    if sequences := _input(run, "--sequences"):
        inputs += ["--sequences", sequences]
    if run.scored is not None and run.scores is None:
        target = run.facts["options"].get("target") or {}
        argv = ["baseline", *inputs, "--metadata", metadata or "METADATA"]
        argv += ["--metadata-column", str(run.target)]
        argv += ["--classifier"] if target.get("classifier") else []
        argv += ["--ordinal", *target["ordinal"]] if target.get("ordinal") else []
        argv += ["--where", target["where"]] if target.get("where") else []
        argv += ["--splits", f"{folder}/splits.tsv"]
        present = {baseline.model for baseline in run.baselines}
        for member, model, place in BASELINES:
            if model not in present:
                output = ["--member", member, "--output-dir", f"{folder}/{place}"]
                yield f"A {model} on the same split, to compare with:", _command([*argv, *output])
    if run.part == "validation":
        argv = [str(argument) for argument in run.facts.get("argv") or []][1:]
        for flag in ("--output-dir", "--folds", "--resume-from"):
            argv = _without(argv, flag)
        if argv:
            argv += ["--folds", "5", "--output-dir", f"{folder}-folds"]
            yield "Test samples that chose nothing (cross-validation):", _command(argv)
    if not run.importance and run.target:
        argv = ["importance", *inputs, "--model", folder, "--output", f"{folder}/importance.tsv"]
        yield "The ASVs that matter (add --taxonomy for their names):", _command(argv)
    if run.embeddings is not None and run.unifrac is None:
        argv = ["unifrac", *inputs]
        if not table or not Path(table).is_dir():  # a store has its tree
            argv += ["--tree", _tree(run) or "TREE"]
        argv += ["--output", f"{folder}/unifrac.tsv"]
        yield "UniFrac distances, to show beside the embedding:", _command(argv)
    if run.embeddings is not None and not given.colours:
        argv = ["report", "--run-dir", folder, "--metadata", metadata or "METADATA"]
        argv += ["--color-by", run.target or "COLUMN"]
        yield "Colours of the embedding by metadata columns:", _command(argv)


def _input(run: Run, flag: str) -> str:
    return str(run.facts.get("inputs", {}).get(flag, {}).get("path", ""))


def _tree(run: Run) -> str:
    """Return the tree of the run, or of its pretrained encoder."""
    encoder = run.option("pretrained_encoder")
    if _input(run, "--tree") or encoder is None:
        return _input(run, "--tree")
    try:
        inputs = run_record.read(Path(encoder) / "run.json").get("inputs", {})
    except AamError:
        return ""
    return str(inputs.get("--tree", {}).get("path", ""))


def _without(argv: list[str], flag: str) -> list[str]:
    """Remove a flag and its value from a command line, wherever it is given."""
    kept, rest = [], iter(argv)
    for argument in rest:
        if argument == flag:
            next(rest, None)
        elif not argument.startswith(f"{flag}="):
            kept.append(argument)
    return kept


def _command(argv: list[str]) -> str:
    return shlex.join(["aam", *argv])
