"""Submission of jobs without Slurm: the job script, and every refusal."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aam.contract.errors import UsageError
from aam.contract.options import find, names, parse_known, specs
from aam.contract.yaml_document import entries
from launcher.engines import ENGINES
from launcher.plan.launcher_options import LAUNCHER_OPTIONS
from launcher.plan.mounts import Mount
from launcher.plan.plan import Plan
from launcher.plan.request import parse
from launcher.slurm.history import Submitted
from launcher.slurm.job import Allocation, Job, Place, Program
from launcher.slurm.script import script
from launcher.slurm.status import job_status, progress
from launcher.slurm.submit_options import SubmitOptions
from launcher.slurm.sweep import tasks_of

ROOT = Path(__file__).parents[2]
SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
SITE = """title: a test site
partition: gpu
nodes: 8
max_nodes: 2
max_time: "12:00:00"
gpus_per_node: 4
vendor: amd
arch: gfx942
runtime: apptainer
stage_most_gb: 10
"""


def submit(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch submit` in `folder` as a process of its own, with no Slurm on PATH."""
    environment = {
        "PATH": f"{folder}/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT), "USER": "ada",
        "AAM_IMAGE_DIR": f"{folder}/images", **variables,
    }  # fmt: skip
    command = [sys.executable, "-m", "launcher.cli", "submit", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "table.biom").write_text("x")
    (tmp_path / "tree.nwk").write_text("(a,b);")
    (tmp_path / "site.yaml").write_text(SITE)
    return tmp_path


WORDS = ("--site", "./site.yaml", "pretrain", "--table", "table.biom", "--tree", "tree.nwk",
         "--output-dir", "out")  # fmt: skip


# --- the script


def test_a_dry_run_needs_no_slurm_and_prints_the_script(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--time", "2:00:00", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Image rocm72 is not built" in done.stderr
    lines = done.stdout.splitlines()
    header = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert header == [
        "--job-name=pretrain", "--partition=gpu", "--nodes=1", "--ntasks-per-node=1",
        "--time=2:00:00", "--requeue", "--open-mode=append",
        f"--output={place}/out-%j.log",
    ]  # fmt: skip
    command = next(line for line in lines if line.startswith("set -- "))
    assert shlex.split(command)[2:] == [
        "pretrain", "--table", f"{place}/table.biom", "--tree", f"{place}/tree.nwk",
        "--output-dir", f"{place}/out",
    ]  # fmt: skip
    assert f"image={place}/images/rocm72.sif python=python" in lines
    assert f"type=bind,source={place}/tree.nwk,destination={place}/tree.nwk,ro" in done.stdout
    assert len(lines) <= 60
    assert not (place / "out").exists()


def test_a_job_refuses_an_image_that_changed_after_the_submission(place: Path) -> None:
    sif = place / "images/rocm63.sif"
    sif.parent.mkdir(exist_ok=True)
    sif.write_bytes(b"an image")
    text = submit(place, *WORDS, "--dry-run").stdout
    (image,) = (line for line in text.splitlines() if line.startswith("image="))
    (check,) = (line for line in text.splitlines() if "stat -Lc" in line)
    script = f"{image}\n{check}\necho same"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
    later = sif.stat().st_mtime + 5
    os.utime(sif, (later, later))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 65
    assert done.stderr == (
        f"aam-job: '{sif}' has changed since the job was submitted; submit it again\n"
    )


def test_the_same_request_gives_the_same_script(place: Path) -> None:
    first, second = (submit(place, *WORDS, "--gpus", "1", "--dry-run").stdout for _ in range(2))
    assert first == second


def test_a_site_decides_image_and_flags_as_a_host_would(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--image", "rocm62", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "\nset -- pretrain --attn-implementation math --no-gradient-checkpointing --table" in (
        done.stdout
    )
    assert f"image={place}/images/rocm62.sif" in done.stdout


@pytest.mark.skipif(SHELLCHECK is None and "CI" not in os.environ, reason="no shellcheck")
@pytest.mark.parametrize(
    "more", [(), ("--image", "rocm62"), ("--runtime", "native", "--device", "cpu")]
)
def test_scripts_are_clean(place: Path, more: tuple[str, ...]) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run", "--force", *more)
    assert done.returncode == 0, done.stderr
    assert SHELLCHECK is not None
    checked = subprocess.run(
        [SHELLCHECK, "-"], input=done.stdout, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(WORD.filter(lambda word: not word.startswith("--")), min_size=1, max_size=4))
def test_any_word_arrives_as_it_was_written(words: list[str]) -> None:
    job = Job(Allocation("n"), Program("pretrain", ("--table", *words), engine="native"), Place())
    text = script(job)
    block = text[text.index("set -- pretrain") : text.index("fail() {")]
    shown = subprocess.run(
        ["bash", "-c", block + "printf '%s\\0' \"$@\""], capture_output=True, check=True
    )
    assert shown.stdout.decode().split("\0")[:-1] == ["pretrain", "--table", *words]


def test_the_container_is_the_one_that_a_direct_launch_starts(place: Path) -> None:
    """Both come from one function; a job has the host's /dev and the job's own folder."""
    plan = Plan(
        engine="apptainer", program="/bin/apptainer", place="/i.sif", workdir="/mnt/node/home",
        argv=("pretrain",), mounts=(Mount('/a,"b"', "/t", False, "", ""),),
    )  # fmt: skip
    engine = ENGINES["apptainer"]
    direct = list(engine.command(plan))
    assert direct[1 : direct.index("/i.sif")] == [*engine.run_flags(plan)]
    flags = engine.run_flags(replace(plan, host_devices=True))
    assert "--contain" in direct
    assert "--contain" not in flags
    program = Program("pretrain", (), engine="apptainer", container=flags, image="/i.sif")
    text = script(Job(Allocation("n"), program, Place()))
    line = next(line for line in text.splitlines() if line.startswith("container=("))
    shown = subprocess.run(
        ["bash", "-c", f"node=/scratch/job; {line}; printf '%s\\0' \"${{container[@]}}\""],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.split("\0")[:-1] == [
        "apptainer", *flags,
        "--mount", "type=bind,source=/scratch/job,destination=/mnt/node",
        "--mount", "type=bind,source=/scratch/job/tmp,destination=/tmp",
    ]  # fmt: skip


def test_names_with_spaces_and_quotes(place: Path) -> None:
    odd = place / 'it\'s a "run" 100%'
    done = submit(
        place, *WORDS[:-1], str(odd), "--gpus", "1", "--dry-run", "--job-name", 'my "job" \\1'
    )
    assert done.returncode == 0, done.stderr
    assert '#SBATCH "--job-name=my \\"job\\" \\\\1"' in done.stdout
    assert f'#SBATCH "--output={place}/it\'s a \\"run\\" 100%%-%j.log"' in done.stdout
    assert shlex.quote(str(odd)) in done.stdout


def test_options_of_submit_are_no_options_of_a_command() -> None:
    flags = {spec.flag for spec in specs(SubmitOptions)}
    # It means the same with and without a queue: so many ranks on a machine.
    assert flags & set(LAUNCHER_OPTIONS) == {"--gpus"}
    for name in names():
        assert not flags & {spec.flag for spec in specs(find(name) or object)}


# --- arrays


def test_a_grid_is_every_combination(place: Path) -> None:
    (place / "sweep.yaml").write_text("lr: [0.001, 0.0003]\nstratify: [true, false]\n")
    done = submit(place, *WORDS, "--lr", "9", "--gpus", "1", "--array", "sweep.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --array=0-3" in done.stdout
    assert f"--output={place}/out-%A_%a.log" in done.stdout
    tasks = re.findall(r'^ +(\d)\) set -- "\$@" (.*) ;;$', done.stdout, re.MULTILINE)
    assert [number for number, _ in tasks] == list("0123")
    assert tasks[0][1] == f"--lr 0.001 --stratify --output-dir {place}/out/lr-0.001_stratify"
    assert (
        tasks[3][1] == f"--lr 0.0003 --no-stratify --output-dir {place}/out/lr-0.0003_no-stratify"
    )
    assert "--lr 9" not in done.stdout


def test_a_task_overrides_what_the_command_line_says() -> None:
    grid = entries("seed: [1, 2]", "s", ["seed"])
    words = ["--table", "t", "--seed=5", "--output-dir=o", "--epochs", "2"]
    shared, tasks = tasks_of(parse(["pretrain", *words]), grid)
    assert shared.arguments == ("--table", "t", "--epochs", "2")
    assert tasks == (("--seed", "1", "--output-dir", "o/seed-1"),
                     ("--seed", "2", "--output-dir", "o/seed-2"))  # fmt: skip


def test_shards_are_an_array(place: Path) -> None:
    words = ["--site", "./site.yaml", "predict", "--table", "table.biom", "--model", "tree.nwk"]
    shards = ["--output", "p.tsv", "--shards", "12", "--gpus", "1"]
    done = submit(place, *words, *shards, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --array=0-11\n" in done.stdout
    assert f"--output={place}/p.tsv-%A_%a.log" in done.stdout
    assert 'set -- "$@" --shard "$((SLURM_ARRAY_TASK_ID + 1))/12"' in done.stdout
    matrix = ["--table", "table.biom", "--tree", "tree.nwk", "--output", "d.h5"]
    done = submit(place, *words[:2], "unifrac", *matrix, *shards[2:], "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"--output={place}/d.h5-%A_%a.log" in done.stdout
    both = submit(place, *words, *shards, "--array", "sweep.yaml", "--dry-run")
    assert both.returncode == UsageError.status
    assert "--shards 12 and --array sweep.yaml" in both.stderr
    other = submit(place, *WORDS, "--shards", "12", "--dry-run")
    assert other.returncode == UsageError.status
    assert "A command without shards: `pretrain --shards`; predict, embed, unifrac" in other.stderr


# --- refusals

REFUSED = [
    (["--nodes", "3"], 64, "More nodes than the site allows: --nodes 3, and 2 is the most on a "
     "test site; give --nodes 2 or less, or --force."),
    (["--nodes", "9"], 64, "--nodes 9, and 2 is the most"),
    (["--time", "1-0"], 64, "More time than the site allows: --time 1-0, and 12:00:00"),
    (["--time", "soon"], 64, "Not a time: --time 'soon'"),
    (["--gpus", "5"], 64, "a node of a test site has 4"),
    (["--nodes", "0"], 64, "--nodes 0; give 1 or more for --nodes."),
    (["--nodes"], 64, "An option without its value: --nodes"),
    (["--job-name", "a\nb"], 64, "A value that no job script can hold: --job-name 'a\\nb'"),
    (["--image", "rocm99"], 64, "No such image: 'rocm99'; did you mean"),
    (["--tabel", "x"], 64, "did you mean '--table'?"),
    (["--array", "none.yaml"], 66, "No file for --array: 'none.yaml'"),
    ([], 69, "Image rocm72 is not built"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "status", "sentence"), REFUSED)
def test_what_is_refused(place: Path, more: list[str], status: int, sentence: str) -> None:
    gpus = [] if "--gpus" in more else ["--gpus", "1"]
    done = submit(place, *WORDS, *gpus, *more)
    assert (done.returncode, done.stdout) == (status, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("grid", "status", "sentence"),
    [
        ("lrr: [1]", 78, "An unknown key: 'lrr' in sweep.yaml:1; did you mean 'lr'?"),
        ("table: [a]", 78, "An unknown key: 'table'"),
        ("lr: 1", 78, "No list of values: 'lr' in sweep.yaml:1 is 1"),
        ("lr: []", 78, "No list of values"),
        ("lr: [2026-01-01]", 78, "'2026-01-01' in sweep.yaml:1"),
        ("lr: [{a: 1}]", 78, "in sweep.yaml:1"),
        ("lr: [fast]", 64, "A value that does not suit its option: --lr 'fast'"),
        ("", 78, "'sweep.yaml' is empty"),
        (f"seed: {list(range(1001))}", 78, "1001 combinations"),
    ],
)
def test_sweeps_that_make_no_sense(place: Path, grid: str, status: int, sentence: str) -> None:
    (place / "sweep.yaml").write_text(grid)
    done = submit(place, *WORDS, "--gpus", "1", "--array", "sweep.yaml")
    assert (done.returncode, done.stdout) == (status, "")
    assert sentence in done.stderr


def test_files_that_the_nodes_do_not_see(place: Path) -> None:
    (place / "site.yaml").write_text(SITE + f"shared: [{place}/shared]\n")
    (place / "shared").mkdir()
    done = submit(place, *WORDS, "--gpus", "1")
    assert done.returncode == 66
    assert f"'{place}/table.biom' is not below {place}/shared" in done.stderr
    for name in ("table.biom", "tree.nwk"):
        (place / name).rename(place / "shared" / name)
    words = [f"shared/{word}" if word.endswith(("biom", "nwk")) else word for word in WORDS]
    done = submit(place, *words, "--gpus", "1")
    assert done.returncode == 73
    assert "The nodes do not see the output of --output-dir" in done.stderr
    (place / "site.yaml").write_text(SITE + f"unshared: [{place}/shared]\n")
    assert "which each host has for itself" in submit(place, *words, "--gpus", "1").stderr


def test_an_output_that_is_there(place: Path) -> None:
    (place / "out").mkdir()
    (place / "out/run.json").write_text("{}")
    done = submit(place, *WORDS, "--gpus", "1")
    assert done.returncode == 73
    assert "--overwrite replaces it, --resume-from continues it" in done.stderr
    assert submit(place, *WORDS, "--gpus", "1", "--overwrite").returncode == 69  # the image


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_an_output_on_a_full_disk(place: Path) -> None:
    (place / "disk").mkdir()
    line = 'mount -t tmpfs -o size=1m tmpfs disk && exec "$@"'
    done = limited(place, "disk/out", "unshare", "--mount", "sh", "-c", line, "sh")
    assert done.returncode == 73
    assert "No room for --output-dir: the disk of" in done.stderr


def test_what_only_writing_shows(place: Path) -> None:
    """A quota is not to be had on every test machine; a limit for files is refused likewise."""
    done = limited(place, "out", "prlimit", "--fsize=500000")
    assert done.returncode == 73
    assert f"No room for --output-dir: '{place}', File too large" in done.stderr
    assert not list(place.glob(".aam-room*"))


def limited(place: Path, output: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Run `submit` under something that limits it."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "PYTHONPATH": str(ROOT)}
    words = ["-m", "launcher.cli", "submit", *WORDS[:-1], output, "--gpus", "1"]
    return subprocess.run(
        [*before, sys.executable, *words],
        capture_output=True, text=True, env=environment, cwd=place, check=False,
    )  # fmt: skip


def test_one_process_commands_take_one_gpu(place: Path) -> None:
    words = ["--site", "./site.yaml", "unifrac", "--table", "table.biom", "--tree", "tree.nwk",
             "--output", "d.npy"]  # fmt: skip
    done = submit(place, *words, "--nodes", "2")
    assert done.returncode == 64
    assert "`unifrac` runs in one process: 2 nodes" in done.stderr
    done = submit(place, *words, "--dry-run")
    assert "#SBATCH --signal" not in done.stdout
    assert "--no-requeue" in done.stdout
    assert submit(place, "explain").returncode == 64


def test_a_job_for_gpus_needs_a_pytorch_that_can_use_them(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--runtime", "native")
    assert done.returncode == 69
    assert "The GPUs would stay idle" in done.stderr
    assert "--device cpu" in done.stderr


def test_no_slurm_on_this_host(place: Path) -> None:
    done = submit(place, *WORDS, "--runtime", "native", "--device", "cpu")
    assert done.returncode == 69
    assert "There is no Slurm on this host: sbatch is not on PATH" in done.stderr
    assert "--dry-run prints the script." in done.stderr


@pytest.mark.parametrize("words", [["--nodes=2", "a", "--time", "5"], ["a", "--nodes", "2"]])
def test_options_of_the_job_stand_anywhere(words: list[str]) -> None:
    found, rest = parse_known(specs(SubmitOptions), words)
    assert rest == ["a"]
    assert found["--nodes"] == 2


def test_a_job_stops_before_whatever_limit_it_gets(place: Path) -> None:
    """The script reads its limit when it starts, so an option of sbatch counts."""
    done = submit(place, *WORDS, "--gpus", "1", "--time", "10", "--dry-run")
    assert "#SBATCH --signal" not in done.stdout
    assert "--warn-seconds 600 --requeue" in done.stdout
    assert "end=${SLURM_JOB_END_TIME:-$(date" in done.stdout
    done = submit(place, *WORDS, "--gpus", "1", "--no-requeue", "--dry-run")
    assert "--warn-seconds" not in done.stdout


HOSTILE = [
    ('partition: "gpu\\ntouch OWNED"', "partition"),
    ('account: "a b"', "account"),
    ('gpu_request: "--gpus=1\\n#SBATCH --x"', "gpu_request"),
    ('modules: ["rocm; touch OWNED"]', "modules"),
    ('interfaces: ["hsn* $(id)"]', "interfaces"),
    ('local: "/scratch/$(id)"', "local"),
    ('plugin: ["/opt/a\\nb"]', "plugin"),
    ('network: {A: "1\\ntouch OWNED"}', "network"),
]


@pytest.mark.parametrize(("line", "key"), HOSTILE)
def test_a_site_puts_no_line_of_its_own_into_a_script(place: Path, line: str, key: str) -> None:
    kept = [text for text in SITE.splitlines() if not text.startswith(f"{key}:")]
    (place / "site.yaml").write_text("\n".join([*kept, line, ""]))
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    assert (done.returncode, done.stdout) == (78, ""), done.stderr
    assert "A value that no job script can hold: " in done.stderr
    assert " in ./site.yaml:" in done.stderr or " in site.yaml:" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_title_with_line_ends_stays_one_line(place: Path) -> None:
    (place / "site.yaml").write_text(SITE.replace("a test site", '"a\\ntest\\n\\nsite"'))
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    assert "1 rank each, a test site." in done.stdout, done.stderr


def test_a_job_needs_no_name_of_its_user(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    start = done.stdout.index("set -uo pipefail")
    lines = done.stdout[start : done.stdout.index("end=")].replace("/tmp", str(place))
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7"}
    shown = subprocess.run(
        ["bash", "-c", f'{lines}\necho "$USER $node"'],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == f"{pwd.getpwuid(os.getuid()).pw_name} {place}/aam-7\n", shown.stderr


def test_progress_is_that_of_the_run_folder(tmp_path: Path) -> None:
    found = {"step": 12, "steps": 160, "fold": 1, "folds": 1, "samples_per_second": 34.56,
             "seconds_left": 3700.2}  # fmt: skip
    (tmp_path / "progress.json").write_text(json.dumps(found))
    assert progress(tmp_path, True) == "step 12/160, 34.6 samples/s, 1:01:40 left"
    assert progress(tmp_path, False) == "step 12/160"
    (tmp_path / "progress.json").write_text(json.dumps({**found, "fold": 2, "folds": 5}))
    assert progress(tmp_path, False) == "fold 2/5 step 12/160"
    (tmp_path / "progress.json").write_text("{")
    assert progress(tmp_path, True) == progress(tmp_path / "none", True) == ""


@pytest.mark.parametrize(
    ("log", "state"),
    [
        ("aam-job: ended with status 0", "finished"),
        ("aam-job: ended with status 137", "failed (status 137)"),
        ("aam-job: ended with status 75, stopped on request; continue", "stopped, can be resumed"),
        ("", "unknown, see its log"),
    ],
)
def test_a_stop_on_request_is_no_failure(tmp_path: Path, log: str, state: str) -> None:
    (tmp_path / "job.log").write_text(f"{log}\n")
    entry = Submitted(
        "7", "n", "pretrain", "s", "", str(tmp_path / "job.log"), {"7": str(tmp_path)}
    )
    assert [row.state for row in job_status(entry, {})] == [state]
