"""Memory of a job before its ranks start: real predictions by `aam-launch memory`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from aam.contract.errors import UsageError
from launcher import config
from launcher.plan.inputs import Request
from launcher.slurm import checks
from launcher.slurm.site import Site
from tests.support.launches import parse, program
from tests.support.submissions import ROOT, SITE, WORDS, queued

PROGRAM = (sys.executable, str(ROOT / "launcher"))


def site(folder: Path, gigabytes: int) -> Site:
    path = folder / f"site-{gigabytes}.yaml"
    path.write_text(f"{SITE}gpu: MI210\ngpu_memory_gb: {gigabytes}\n")
    return config.site(str(path))


def training(study_dir: Path, *more: str) -> Request:
    table, tree = study_dir / "table.biom", study_dir / "tree.nwk"
    sizes = ("--embedding-dim", "32", "--attention-layers", "1")
    return parse(
        ["pretrain", "--table", str(table), "--tree", str(tree), "--output-dir", "run", *sizes,
         "--runtime", "native", *more]
    )  # fmt: skip


@pytest.mark.slow
def test_a_job_that_does_not_fit_ends_before_its_ranks_start(
    study_dir: Path, tmp_path: Path
) -> None:
    """1 GiB of driver and libraries, and a small network; a restarted job has fitted before."""
    program(tmp_path / "bin/srun", f"echo $SECRET >>{tmp_path}/started")
    variables = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path),
                 "TMPDIR": str(tmp_path),
                 "SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "4"}  # fmt: skip

    def job(gigabytes: int, *own: str, **more: str) -> subprocess.CompletedProcess[str]:
        place = site(tmp_path, gigabytes) and tmp_path / f"site-{gigabytes}.yaml"
        request = training(study_dir, "--distributed")
        argv = [*PROGRAM, "job", *own, "--site", str(place), "--runtime", "native", *request.argv]
        return subprocess.run(argv, capture_output=True, text=True, env={**variables, **more},
                              check=False, cwd=tmp_path)  # fmt: skip

    refused = job(1)
    assert refused.returncode == 64, refused.stderr
    _, problem, last = refused.stderr.splitlines()
    assert "The job does not fit into the memory of a GPU: 1.1 GB predicted" in problem
    assert "MI210 has 1 GB" in problem and "--no-memory-check" in problem
    assert last == "aam-job: ended with status 64"
    assert not (tmp_path / "started").exists()
    assert not list(tmp_path.glob("aam-*/7-*"))
    fits = (job(2), job(1, "--no-memory-check"), job(1, SLURM_RESTART_COUNT="1"))
    assert [done.returncode for done in fits] == [0, 0, 0], [done.stderr for done in fits]
    assert len((tmp_path / "started").read_text().splitlines()) == 3


def printing(folder: Path, text: str) -> tuple[str, ...]:
    return (str(program(folder / "launcher", text)),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("echo 'aam: The table is damaged.' >&2; exit 65", "aam: The table is damaged;"),
        ("exit 3", "it ended with status 3;"),
        ("echo hello", "is not predicted: "),
        ("echo '{}'", "it printed no prediction;"),
    ],
)
def test_a_job_goes_on_where_its_memory_is_not_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    program = printing(tmp_path, text)
    checks.require_memory(training(tmp_path), 1, site(tmp_path, 1), program)
    line = capsys.readouterr().err
    assert line.startswith("aam-job: the memory of the job is not predicted: ")
    assert sentence in line
    assert line.endswith("`aam-launch memory pretrain` with the same options shows why\n")
    checks.require_memory(training(tmp_path), 1, site(tmp_path, 1), ("/no/such",))
    assert "No such file or directory" in capsys.readouterr().err


def test_values_of_env_are_in_no_command_line_of_a_prediction(tmp_path: Path) -> None:
    program = printing(tmp_path, f'echo "$@ has $TOKEN" >{tmp_path}/seen')
    request = training(tmp_path, "--env", "TOKEN=s3cret", "--env", "HOME")
    checks.require_memory(request, 1, site(tmp_path, 1), program)
    seen = (tmp_path / "seen").read_text()
    assert "--env=TOKEN" in seen and "--env=HOME" in seen
    assert seen.endswith(" has s3cret\n") and seen.count("s3cret") == 1


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
    needed = json.dumps({"needed": 17 * 10**9})
    program = printing(tmp_path, f"touch {tmp_path}/predicted; echo '{needed}'")
    refused = pytest.raises(UsageError) if predicted else nullcontext()
    with refused:
        checks.require_memory(request, 1, site(tmp_path, gigabytes), program)
    assert (tmp_path / "predicted").exists() == predicted


def test_a_submission_predicts_nothing(place: Path) -> None:
    """A login node is shared; the job predicts in its first second."""
    with (place / "site.yaml").open("a") as stream:
        stream.write("gpu_memory_gb: 1\n")
    assert "memory" not in queued(place, *WORDS)
    assert " --no-memory-check " in queued(place, *WORDS, "--overwrite", "--no-memory-check")
