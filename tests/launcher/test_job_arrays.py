"""`aam-launch submit`: arrays of a grid, of shards and of the trials of a search."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from aam.contract.errors import UsageError
from aam.contract.yaml_document import entries
from launcher.plan.request import parse
from launcher.slurm import job_file
from launcher.slurm.sweep import tasks_of
from tests.support.submissions import WORDS, slurm_and_image, submit


def test_a_grid_is_every_combination(place: Path) -> None:
    (place / "sweep.yaml").write_text("lr: [0.001, 0.0003]\nstratify: [true, false]\n")
    done = submit(place, *WORDS, "--lr", "9", "--gpus", "1", "--array", "sweep.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --array=0-3" in done.stdout
    assert f"--output={place}/out-%A_%a.log" in done.stdout
    assert (
        "\nnodes     1 node, 1 rank each, a test site, an array of 4 tasks\n" in f"\n{done.stdout}"
    )
    slurm_and_image(place, "echo 41")
    done = submit(place, *WORDS, "--lr", "9", "--gpus", "1", "--array", "sweep.yaml")
    assert done.returncode == 0, done.stderr
    job = job_file.read(place / "out/.aam-job.json")
    assert "--lr" not in job.arguments
    assert len(job.tasks) == 4
    assert job.tasks[0] == ("--lr", "0.001", "--stratify", "--output-dir",
                            f"{place}/out/lr-0.001_stratify")  # fmt: skip
    assert job.tasks[3] == ("--lr", "0.0003", "--no-stratify", "--output-dir",
                            f"{place}/out/lr-0.0003_no-stratify")  # fmt: skip


def test_a_task_overrides_what_the_command_line_says() -> None:
    grid = entries("seed: [1, 2]", "s", ["seed"])
    args = ["--table", "t", "--seed=5", "--output-dir=o", "--epochs", "2"]
    shared, tasks = tasks_of(parse(["pretrain", *args]), grid)
    assert shared.arguments == ("--table", "t", "--epochs", "2")
    assert tasks == (("--seed", "1", "--output-dir", "o/seed-1"),
                     ("--seed", "2", "--output-dir", "o/seed-2"))  # fmt: skip


def test_different_values_have_different_folders() -> None:
    grid = entries('where: ["depth > 800", "depth < 800", "ph"]', "s", ["where"])
    args = ["--table", "t", "--metadata", "m", "--metadata-column", "ph", "--output-dir=o"]
    _, tasks = tasks_of(parse(["train", *args]), grid)
    assert [task[-1] for task in tasks] == [
        "o/where-depth---800_0", "o/where-depth---800_1", "o/where-ph_2",
    ]  # fmt: skip


def test_shards_are_an_array(place: Path) -> None:
    args = ["--site", "./site.yaml", "predict", "--table", "table.biom", "--model", "tree.nwk"]
    shards = ["--output", "p.tsv", "--shards", "12", "--gpus", "1"]
    done = submit(place, *args, *shards, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --array=0-11\n" in done.stdout
    assert f"--output={place}/p.tsv-%A_%a.log" in done.stdout
    matrix = ["--table", "table.biom", "--tree", "tree.nwk", "--output", "d.h5"]
    done = submit(place, *args[:2], "unifrac", *matrix, *shards[2:], "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"--output={place}/d.h5-%A_%a.log" in done.stdout
    both = submit(place, *args, *shards, "--array", "sweep.yaml", "--dry-run")
    assert both.returncode == UsageError.status
    assert "--shards 12 and --array sweep.yaml" in both.stderr
    other = submit(place, *WORDS, "--shards", "12", "--dry-run")
    assert other.returncode == UsageError.status
    assert "A command without shards: `pretrain --shards`; predict, embed, unifrac" in other.stderr


SEARCH = ("--site", "./site.yaml", "search", "--table", "table.biom", "--metadata", "tree.nwk",
          "--metadata-column", "age", "--output-dir", "out")  # fmt: skip


def test_the_tasks_of_a_search_join_one_study_in_one_folder(place: Path) -> None:
    done = submit(place, *SEARCH, "--array-tasks", "8", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --array=0-7\n" in done.stdout
    assert "#SBATCH --ntasks-per-node=1\n" in done.stdout  # of a site with four GPUs
    assert "#SBATCH --requeue\n" in done.stdout
    tasks, last = (line for line in done.stdout.splitlines() if line.startswith("command "))
    assert shlex.split(tasks)[-3:] == ["--output-dir", f"{place}/out", "--trials-only"]
    assert "--trials-only" not in last
    alone = submit(place, *SEARCH, "--dry-run")
    assert "--trials-only" not in alone.stdout
    assert "#SBATCH --ntasks-per-node=1\n" in alone.stdout


def test_a_further_job_evaluates_a_search_after_its_tasks(place: Path) -> None:
    """`sbatch` keeps its options and the script of each job, and prints numbers."""
    slurm_and_image(place, f'echo "$@" >>{place}/options; cat >>{place}/scripts; echo 41')
    (place / "bin/cat").symlink_to(shutil.which("cat") or "/bin/cat")
    done = submit(place, *SEARCH, "--array-tasks", "3")
    assert done.returncode == 0, done.stderr
    assert "Job 41: aam search, after all tasks of job 41" in done.stdout
    *tested, tasks, last = (place / "options").read_text().splitlines()
    assert (tested, tasks) == (["--test-only"] * 2, "--parsable")
    assert last == "--parsable --dependency=afterok:41 --kill-on-invalid-dep=yes"
    texts = (place / "scripts").read_text().split("#!/bin/bash\n")[1:]
    names = ["job.json", "job-last.json", "job.json", "job-last.json"]
    assert [
        f"job={place}/out/.aam-{name}\n" in text for name, text in zip(names, texts, strict=True)
    ]
    first, evaluation = (job_file.read(place / f"out/.aam-{name}") for name in names[2:])
    assert (first.arguments[-1], first.tasks) == ("--trials-only", ())
    assert "--trials-only" not in evaluation.arguments
    assert ["--array=0-2" in text for text in texts] == [True, False, True, False]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((*SEARCH, "--gpus", "2"), "`search` runs in one process: 1 nodes, 2 GPUs each"),
        ((*SEARCH, "--array-tasks", "2", "--array", "a.yaml"), "--array a.yaml and --array-tasks"),
        ((*SEARCH, "--storage", "sqlite:///s.db"), "no other SQLite database: --storage sqlite"),
        ((*WORDS, "--array-tasks", "2"), "--array-tasks is for `search` alone: `pretrain`"),
    ],
)
def test_tasks_of_a_search_are_refused(place: Path, args: tuple[str, ...], sentence: str) -> None:
    done = submit(place, *args, "--dry-run")
    assert done.returncode == UsageError.status
    assert sentence in done.stderr
