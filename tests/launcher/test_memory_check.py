"""Memory of a job before it is queued: real predictions by `aam-launch memory`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from launcher import config
from launcher.plan.inputs import Request
from launcher.slurm import checks
from launcher.slurm.site import Site
from tests.support.launches import parse
from tests.support.submissions import ROOT, SITE, WORDS, submit

ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
NATIVE = (sys.executable, "-m", "launcher", "--runtime", "native")


def site(folder: Path, gigabytes: int) -> Site:
    path = folder / f"site-{gigabytes}.yaml"
    path.write_text(f"{SITE}gpu: MI210\ngpu_memory_gb: {gigabytes}\n")
    return config.site(str(path))


def training(study_dir: Path, *more: str) -> Request:
    table, tree = study_dir / "table.biom", study_dir / "tree.nwk"
    sizes = ("--embedding-dim", "32", "--attention-layers", "1")
    return parse(
        ["pretrain", "--table", str(table), "--tree", str(tree), "--output-dir", "run", *sizes,
         *more]
    )  # fmt: skip


@pytest.mark.slow
def test_a_training_is_predicted_by_aam(study_dir: Path, tmp_path: Path) -> None:
    """1 GiB of driver and libraries, and a small network."""
    request = training(study_dir, "--distributed")
    (problem,), findings = checks.memory(request, 4, site(tmp_path, 1), NATIVE, ENV)
    assert not findings
    assert "The job does not fit into the memory of a GPU: 1.1 GB predicted" in str(problem)
    assert "MI210 has 1 GB" in str(problem) and "--no-memory-check" in str(problem)
    assert checks.memory(request, 4, site(tmp_path, 2), NATIVE, ENV) == ([], [])


def printing(folder: Path, text: str) -> tuple[str, ...]:
    program = folder / "launcher"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return (str(program),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("echo 'aam: The table is damaged.' >&2; exit 65", "aam: The table is damaged;"),
        ("exit 3", "it ended with status 3;"),
        ("echo hello", "is not predicted: "),
        ("echo '{}'", "it printed no prediction;"),
    ],
)
def test_what_keeps_a_prediction_from_ending_is_a_warning(
    tmp_path: Path, text: str, sentence: str
) -> None:
    launch = printing(tmp_path, text)
    problems, (finding,) = checks.memory(training(tmp_path), 1, site(tmp_path, 1), launch, ENV)
    assert not problems and finding.severity == "warning"
    assert sentence in str(finding)
    assert str(finding).endswith("`aam-launch memory pretrain` with the same options shows why.")
    absent = checks.memory(training(tmp_path), 1, site(tmp_path, 1), ("/no/such",), ENV)
    assert "No such file or directory" in str(absent[1][0])


@pytest.mark.parametrize(
    ("command", "gigabytes", "predicted"),
    [
        ("pretrain", 16, True),
        ("pretrain", 0, False),  # the memory of the GPUs is unknown
        ("pretrain --device cpu", 16, False),
        ("pretrain --batch-size auto", 16, False),
        ("pretrain --asv-chunk auto", 16, False),
        ("train --members transformer", 16, True),
        ("train --members kernel", 16, False),
        ("predict", 16, False),
    ],
)
def test_networks_of_given_sizes_on_a_gpu_are_predicted(
    tmp_path: Path, command: str, gigabytes: int, predicted: bool
) -> None:
    name, *more = command.split()
    required = {
        "pretrain": ["--table", "t", "--tree", "n", "--output-dir", "run"],
        "train": ["--table", "t", "--metadata", "t", "--metadata-column", "c", "--output-dir", "r"],
        "predict": ["--table", "t", "--model", "m", "--output", "o"],
    }
    request = parse([name, *required[name], *more])
    needed = {"needed": 17 * 10**9}
    launch = printing(tmp_path, f"echo '{json.dumps(needed)}'")
    problems, _ = checks.memory(request, 1, site(tmp_path, gigabytes), launch, ENV)
    assert bool(problems) is predicted


def test_a_dry_run_predicts_nothing(tmp_path: Path) -> None:
    for name in ("table.biom", "tree.nwk"):
        (tmp_path / name).write_text("x")
    (tmp_path / "site.yaml").write_text(f"{SITE}gpu_memory_gb: 1\n")
    for args in ((), ("--no-memory-check",)):
        done = submit(tmp_path, *WORDS, *args, "--dry-run")
        assert done.returncode == 0 and "memory" not in done.stderr, done.stderr
