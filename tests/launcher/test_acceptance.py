"""`aam-launch acceptance`: images one after the other, and jobs of one and of two nodes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from launcher.engines.sif import record_of
from launcher.images import index
from tests.support.launches import forked, sif
from tests.support.submissions import SITE, slurm_and_image

SBATCH = """case " $* " in
*--test-only*) exit 0 ;;
esac
number=$((40 + $(ls "$HOME"/queued-*.sh 2>/dev/null | wc -l) + 1))
cat >"$HOME/queued-$number.sh"
echo "$*" >"$HOME/queued-$number.args"
echo $number"""
"""Keeps the scripts and the options in place of sbatch."""


def acceptance(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder), "USER": "ada",
                   "AAM_IMAGE_DIR": f"{folder}/images", **variables}  # fmt: skip
    return forked(["acceptance", "--output-dir", "out", *args], folder, environment)


@pytest.fixture
def images(place: Path) -> Path:
    slurm_and_image(place, SBATCH)
    other = sif(place / "images/rocm63.sif")
    index.write(other.parent, "rocm63", "sif", record_of(other))
    (place / "site.yaml").write_text(f'{SITE}gpu_request: "--gpus-per-node={{gpus}}"\n')
    return place


def test_jobs_of_one_and_two_nodes_follow_each_other(images: Path) -> None:
    done = acceptance(images, "--site", "./site.yaml", "--image", "rocm63,rocm64",
                      "--minutes", "20", "--account", "lab")  # fmt: skip
    assert done.returncode == 0, done.stderr
    scripts = [(images / f"queued-{number}.sh").read_text() for number in (41, 42, 43, 44)]
    for script, nodes, ranks in zip(scripts, (1, 2, 1, 2), (1, 4, 1, 4), strict=True):
        expected = {f"--nodes={nodes}", f"--ntasks-per-node={ranks}", "--gpus-per-node=4",
                    "--time=35", "--no-requeue", "--account=lab"}  # fmt: skip
        assert expected <= set(script.replace("#SBATCH ", "").splitlines())
    after = [(images / f"queued-{number}.args").read_text().split()[1:] for number in (41, 42, 44)]
    assert after[0] == []
    assert [words[0] for words in after[1:]] == [
        "--dependency=afterany:41", "--dependency=afterany:43"
    ]  # fmt: skip
    chosen = [re.findall(r"--image (\w+)", script) for script in scripts]
    assert chosen == [["rocm63"], ["rocm63"], ["rocm64"], ["rocm64"]]
    assert all(" acceptance " in script for script in scripts)
    assert "stop     aam-launch jobs cancel 41 42 43 44" in done.stdout
    assert (images / "out/.aam-job").read_text() == "44\n"


def test_a_site_of_one_node_gets_one_job(images: Path) -> None:
    text = (images / "site.yaml").read_text().replace("max_nodes: 2", "max_nodes: 1")
    (images / "site.yaml").write_text(text)
    done = acceptance(images, "--site", "./site.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("#!/bin/bash") == 1
    assert "# aam acceptance: 1 node, 1 rank each, a test site; by aam-launch " in done.stdout


def test_a_problem_of_one_job_queues_none(images: Path) -> None:
    done = acceptance(images, "--site", "./site.yaml", "--image", "rocm63,rocm72")
    assert done.returncode == 69
    assert done.stdout == ""
    assert "rocm72" in done.stderr
    assert not list(images.glob("queued-*"))


def test_each_image_is_measured_on_this_host(images: Path) -> None:
    within = {"SLURM_JOB_ID": "7"}  # in a job the site queues nothing
    for more, variables in (((), {}), (("--site", "./site.yaml"), within)):
        done = acceptance(images, "--image", "cpu,nosuch", "--runtime", "native", "--dry-run",
                          "--device", "cpu", *more, **variables)  # fmt: skip
        assert not list(images.glob("queued-*"))
        assert done.returncode == 64, done.stderr
        assert "nosuch" in done.stderr


def test_one_image_becomes_the_program(images: Path) -> None:
    done = acceptance(images, "--runtime", "native", "--dry-run", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "acceptance --output-dir out --device cpu" in done.stdout
