"""Preflight checks of `aam-launch submit`: invalid jobs, sites and outputs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launches import program
from tests.support.submissions import ROOT, SITE, WORDS, slurm_and_image, submit

REFUSED = [
    (["--nodes", "3"], 64, "More nodes than the site allows: --nodes 3, and 2 is the most on a "
     "test site; give --nodes 2 or less, or --force."),
    (["--time", "1-0"], 64, "More time than the site allows: --time 1-0, and 12:00:00"),
    (["--time", "soon"], 64, "Not a time: --time 'soon'"),
    (["--time", "0:00"], 64, "A job without a time limit: Slurm sets no limit for --time 0:00;"),
    (["--gpus", "5"], 64, "a node of a test site has 4"),
    (["--nodes", "0"], 64, "--nodes 0; give 1 or more for --nodes."),
    (["--job-name", "a\nb"], 64, "No job script can hold this value: '--job-name=a\\nb'"),
    (["--sbatch", "nodes=4"], 64, "An option that the job script sets: --sbatch 'nodes=4'"),
    (["--sbatch", "Q=1"], 64, "Not an option of sbatch: --sbatch 'Q=1'"),
    (["--image", "rocm99"], 64, "No such image: 'rocm99'; known are rocm72"),
    ([], 69, "Image rocm64 is not built"),
    (["--runtime", "native"], 69, "The GPUs would stay idle: ... --device cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "status", "sentence"), REFUSED)
def test_what_is_refused(place: Path, more: list[str], status: int, sentence: str) -> None:
    gpus = [] if "--gpus" in more else ["--gpus", "1"]
    done = submit(place, *WORDS, *gpus, *more)
    assert (done.returncode, done.stdout) == (status, "")
    *before, last = done.stderr.splitlines()
    assert all(part in last for part in sentence.split("..."))
    # What else is wrong comes before it, so that all is corrected at once.
    assert all("Image rocm64 is not built" in line for line in before)


def test_files_that_the_nodes_do_not_see(place: Path) -> None:
    (place / "site.yaml").write_text(SITE + f"shared: [{place}/shared]\n")
    (place / "shared").mkdir()
    done = submit(place, *WORDS, "--gpus", "1")
    assert done.returncode == 66
    assert f"'{place}/table.biom' is not below {place}/shared" in done.stderr
    for name in ("table.biom", "tree.nwk"):
        (place / name).rename(place / "shared" / name)
    args = [f"shared/{word}" if word.endswith(("biom", "nwk")) else word for word in WORDS]
    done = submit(place, *args, "--gpus", "1")
    assert done.returncode == 73
    assert "The nodes do not see the output of --output-dir" in done.stderr
    (place / "site.yaml").write_text(SITE + f"unshared: [{place}/shared]\n")
    assert "each host has its own" in submit(place, *args, "--gpus", "1").stderr


def test_an_output_that_is_there(place: Path) -> None:
    (place / "out").mkdir()
    (place / "out/run.json").write_text('{"files": ["model"]}')
    done = submit(place, *WORDS, "--gpus", "1")
    assert done.returncode == 73
    assert "continue it with --resume-from auto, replace it with --overwrite" in done.stderr
    assert submit(place, *WORDS, "--gpus", "1", "--overwrite").returncode == 69  # the image


def test_any_file_of_a_run_occupies_its_folder(place: Path) -> None:
    (place / "out/fold-1").mkdir(parents=True)
    for name in ("scores.json", "importance.tsv", "fold-1/metrics.csv"):
        (place / "out" / name).touch()
        done = submit(place, *WORDS, "--gpus", "1")
        assert done.returncode == 73
        assert f"'{place}/out' has {name}" in done.stderr or f"'out' has {name}" in done.stderr
        (place / "out" / name).unlink()


def test_a_column_that_the_metadata_lacks(place: Path) -> None:
    words = ("--site", "./site.yaml", "train", "--table", "table.biom", "--metadata", "m.tsv",
             "--metadata-column", "agee", "--output-dir", "out")  # fmt: skip
    done = submit(place, *words)
    assert (done.returncode, done.stdout) == (65, "")
    assert "The metadata has no column 'agee'" in done.stderr
    assert "did you mean 'age'?" in done.stderr


@pytest.mark.parametrize(
    ("before", "sentence"),
    [
        # A quota is not to be had on every test machine; a limit for files is refused likewise.
        ("prlimit --fsize=500000", "No room for --output-dir: '{d}', File too large"),
        ("mount -t tmpfs -o size=1m tmpfs {d}", "No room for --output-dir: the disk of"),
        ("mount --bind -o ro {d} {d}", "No access for --output-dir: '{d}' may not"),
    ],
)
def test_an_output_that_cannot_be_written(place: Path, before: str, sentence: str) -> None:
    disk = place / "disk"
    disk.mkdir()
    line = before.format(d=disk).split()
    if line[0] == "mount":
        if os.geteuid() != 0:
            pytest.skip("mounting takes root")
        line = ["unshare", "--mount", "sh", "-c", f'{shlex.join(line)} && exec "$@"', "sh"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "PYTHONPATH": str(ROOT)}
    args = [sys.executable, "-m", "launcher.cli", "submit", *WORDS[:-1], "disk/out", "--gpus", "1"]
    done = subprocess.run([*line, *args], capture_output=True, text=True, env=environment,
                          cwd=place, check=False)  # fmt: skip
    assert done.returncode == 73
    (shown,) = (line for line in done.stderr.splitlines() if "output-dir" in line)
    assert shown.startswith(f"aam-launch: {sentence.format(d=disk)}")
    assert not list(place.rglob(".aam-room*"))


def test_a_partition_that_is_not_there(place: Path) -> None:
    slurm_and_image(place, "echo 41")
    program(place / "bin/sinfo", "echo 'gpu*|12:00:00|192|8|1-9|'\necho 'long|1-0|192|8|1|'")
    done = submit(place, *WORDS, "--gpus", "1", "--partition", "gpus")
    assert done.returncode == 64
    assert "No such partition: 'gpus'; there are gpu, long." in done.stderr
    shown = submit(place, *WORDS, "--gpus", "1", "--partition", "gpus", "--dry-run")
    assert "warning: No such partition: 'gpus'; there are gpu, long." in shown.stderr
    for options in (["long,gpu"], ["gpus", "--sbatch", "clusters=other"]):  # Slurm alone decides
        assert submit(place, *WORDS, "--gpus", "1", "--partition", *options).returncode == 0
        (place / "out/.aam-job").unlink()


def test_no_slurm_on_this_host(place: Path) -> None:
    done = submit(place, *WORDS, "--runtime", "native", "--device", "cpu")
    assert done.returncode == 69
    assert "There is no Slurm on this host: sbatch is not on PATH" in done.stderr
    assert "--dry-run prints the script." in done.stderr


HOSTILE = [
    ('partition: "gpu\\ntouch OWNED"', "partition"),
    ('account: "a b"', "account"),
    ('gpu_request: "--gpus=1\\n#SBATCH --x"', "gpu_request"),
    ('modules: ["rocm; touch OWNED"]', "modules"),
]


@pytest.mark.parametrize(("line", "key"), HOSTILE)
def test_a_site_puts_no_line_of_its_own_into_a_script(place: Path, line: str, key: str) -> None:
    kept = [text for text in SITE.splitlines() if not text.startswith(f"{key}:")]
    (place / "site.yaml").write_text("\n".join([*kept, line, ""]))
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    assert (done.returncode, done.stdout) == (78, ""), done.stderr
    assert f"Invalid value: {key}" in done.stderr
    assert done.stderr.endswith("; correct it.\n")
    assert " in ./site.yaml:" in done.stderr or " in site.yaml:" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_title_with_line_ends_stays_one_line(place: Path) -> None:
    (place / "site.yaml").write_text(SITE.replace("a test site", '"a\\ntest\\n\\nsite"'))
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    assert "1 rank each, a test site; by aam-launch " in done.stdout, done.stderr
