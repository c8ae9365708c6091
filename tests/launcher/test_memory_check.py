"""Memory of a job before it is queued: real predictions by `aam memory` in a process of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher import config
from launcher.plan.plan import Plan
from launcher.plan.request import Request, parse
from launcher.planning import plan_launch
from launcher.slurm import checks
from launcher.slurm.site import Site
from tests.support.submissions import SITE, WORDS, submit


def site(folder: Path, gigabytes: int) -> Site:
    path = folder / f"site-{gigabytes}.yaml"
    path.write_text(f"{SITE}gpu: MI210\ngpu_memory_gb: {gigabytes}\n")
    return config.site(str(path))


def natively(request: Request) -> Plan:
    return plan_launch(replace(request, launcher_options={"--runtime": "native"}))[1]


def training(study_dir: Path, *more: str) -> Request:
    table, tree = study_dir / "table.biom", study_dir / "tree.nwk"
    sizes = ("--embedding-dim", "32", "--attention-layers", "1")
    return parse(
        ["pretrain", "--table", str(table), "--tree", str(tree), "--output-dir", "run", *sizes,
         *more]
    )  # fmt: skip


@pytest.mark.slow
def test_a_training_is_predicted_by_aam(study_dir: Path, tmp_path: Path) -> None:
    request = training(study_dir, "--distributed")
    needed = checks.predicted_memory(request, 4, natively)
    assert 10**9 < needed < 1.2 * 10**9, "1 GiB of driver and libraries, and a small network"


@pytest.mark.slow
def test_input_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    for name in ("table.biom", "tree.nwk"):
        (tmp_path / name).write_text("x")
    problems, (finding,) = checks.memory(training(tmp_path), 1, site(tmp_path, 1), natively)
    assert not problems and finding.severity == "warning"
    assert str(finding).startswith("The memory of the job is not predicted: aam: ")
    assert str(finding).endswith("`aam-launch memory pretrain` with the same options shows why.")


def test_a_program_that_cannot_be_started_is_a_warning(tmp_path: Path) -> None:
    def absent(request: Request) -> Plan:
        return replace(natively(request), program="/no/such/python")

    problems, (finding,) = checks.memory(training(tmp_path), 1, site(tmp_path, 1), absent)
    assert not problems and "No such file or directory" in str(finding)


def test_a_prediction_is_compared_with_the_gpus_of_the_site(tmp_path: Path) -> None:
    request, gpus = training(tmp_path), site(tmp_path, 16)
    (problem,) = checks.misfit(request, 17 * 10**9, gpus)
    assert "The job does not fit into the memory of a GPU: 17.0 GB predicted" in str(problem)
    assert "MI210 has 16 GB" in str(problem) and "--no-memory-check" in str(problem)
    assert not checks.misfit(request, 16 * 10**9, gpus)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), True),
        (("--device", "cpu"), False),
        (("--batch-size", "auto"), False),
        (("--asv-chunk", "auto"), False),
    ],
)
def test_a_run_on_a_gpu_of_given_sizes_is_predicted(
    tmp_path: Path, args: tuple[str, ...], expected: bool
) -> None:
    request = training(tmp_path, *args)
    assert checks.predicts_memory(request, site(tmp_path, 16)) is expected
    assert not checks.predicts_memory(request, site(tmp_path, 0)), "the site has no memory of a GPU"


def test_only_networks_are_predicted(tmp_path: Path) -> None:
    train = ["train", "--table", "t", "--metadata", "m", "--metadata-column", "c",
             "--output-dir", "run"]  # fmt: skip
    gpus = site(tmp_path, 16)
    assert not checks.predicts_memory(parse(train), gpus), "kernel and forest use no GPU"
    assert checks.predicts_memory(parse([*train, "--members", "transformer"]), gpus)
    assert checks.predicts_memory(parse([*train, "--pretrained-encoder", "run"]), gpus)
    assert not checks.predicts_memory(
        parse(["predict", "--table", "t", "--model", "m", "--output", "o"]), gpus
    )


def test_a_dry_run_predicts_nothing(tmp_path: Path) -> None:
    for name in ("table.biom", "tree.nwk"):
        (tmp_path / name).write_text("x")
    (tmp_path / "site.yaml").write_text(f"{SITE}gpu_memory_gb: 1\n")
    for args in ((), ("--no-memory-check",)):
        done = submit(tmp_path, *WORDS, *args, "--dry-run")
        assert done.returncode == 0 and "memory" not in done.stderr, done.stderr
