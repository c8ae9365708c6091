"""The scripts of `slurm/`, and the shell that all jobs share, run without a Slurm."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from launcher.engines import command
from launcher.engines.sif import contained
from launcher.jobs.files import files
from launcher.jobs.script import NAMES, part
from launcher.plan.mounts import Mount
from launcher.plan.plan import Plan
from tests.launcher.hosts import MI300A, Tree
from tests.launcher.test_submit import SHELLCHECK, WORDS, place, submit

ROOT = Path(__file__).parents[2]
FILES = files()
__all__ = ["place"]


def bash(code: str, *parts: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run shell code after some parts of a job script."""
    text = "\n".join(["set -uo pipefail", *(part(name) for name in parts), code])
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", **variables}
    return subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, env=environment, check=False
    )


# --- the files


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_submit_writes(name: str) -> None:
    path = ROOT / "slurm" / name
    assert path.read_text() == FILES[name], "run `make slurm`"
    assert os.access(path, os.X_OK)


def test_nothing_else_is_in_the_folder() -> None:
    assert {p.name for p in (ROOT / "slurm").iterdir()} == {*FILES, "environment-rocm.yml"}


def test_the_shell_of_a_file_is_that_of_a_submitted_job(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    start, end = "# --- what is said goes to the job's log", "# --- the plan, for run.json"
    shell = done.stdout[done.stdout.index(start) : done.stdout.index(end)]
    for name in ("pretrain_single.sh", "pretrain_multi.sh", "train.sh", "predict.sh"):
        assert shell in FILES[name], name
    for name in NAMES:
        assert part(name) in shell


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_no_person(name: str) -> None:
    text = FILES[name]
    assert not re.search(r"/home/\w|/Users/|--account|--mail|@[a-z]+\.(edu|com|org)", text)
    assert "$USER" in text or "{USER" in text


@pytest.mark.skipif(SHELLCHECK is None and "CI" not in os.environ, reason="no shellcheck")
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_clean(name: str) -> None:
    assert SHELLCHECK is not None
    checked = subprocess.run(
        [SHELLCHECK, str(ROOT / "slurm" / name)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_every_line_can_be_read_by_bash() -> None:
    for name, text in FILES.items():
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stderr)


# --- staging


def stage(tmp_path: Path, between: str = ":", most: int = 1) -> subprocess.CompletedProcess[str]:
    """Take the sums of two files, do something, then copy them."""
    target = tmp_path / "staged"
    target.mkdir(exist_ok=True)
    (tmp_path / "a b").write_text("one")
    (tmp_path / "c,d").write_text("two")
    code = f"""stage_most_gb={most}
    files=("{tmp_path}/a b" "{tmp_path}" "{tmp_path}/c,d")
    sums=$(sum_inputs "${{files[@]}}") || exit
    {between}
    stage "{target}" "$sums" "${{files[@]}}"
    """
    return bash(code, "say.sh", "stage_data.sh")


def on_disk(tmp_path: Path) -> bool:
    done = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True)
    return done.stdout.strip() not in ("tmpfs", "ramfs")


def test_files_are_copied_and_folders_are_not(tmp_path: Path) -> None:
    done = stage(tmp_path)
    assert done.returncode == 0, done.stderr
    if on_disk(tmp_path):
        found = {p.name: p.read_text() for p in (tmp_path / "staged").iterdir()}
        assert found == {"1": "one", "3": "two"}


def test_a_copy_that_is_right_is_not_made_again(tmp_path: Path) -> None:
    if not on_disk(tmp_path):
        pytest.skip("temporary files are in memory here, and nothing is copied to memory")
    stage(tmp_path)
    before = os.stat(tmp_path / "staged/1").st_ino
    stage(tmp_path)
    assert os.stat(tmp_path / "staged/1").st_ino == before
    (tmp_path / "staged/1").write_text("damaged")
    assert stage(tmp_path).returncode == 0
    assert (tmp_path / "staged/1").read_text() == "one"


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    if not on_disk(tmp_path):
        pytest.skip("temporary files are in memory here, and nothing is copied to memory")
    done = stage(tmp_path, between=f'echo more >>"{tmp_path}/c,d"')
    assert done.returncode == 66
    assert f"'{tmp_path}/c,d' changed while it was copied" in done.stderr
    assert not (tmp_path / "staged/3").exists()
    assert (tmp_path / "c,d").read_text() == "twomore\n"


def test_what_is_too_large_stays_where_it_is(tmp_path: Path) -> None:
    done = stage(tmp_path, most=0)
    assert done.returncode == 0
    assert "Inputs of 6 bytes stay where they are" in done.stderr
    assert not list((tmp_path / "staged").iterdir())


# --- copying the run


def synced(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "slurm/sync_checkpoints.sh", tmp_path / "from", tmp_path / "to", *more]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_run_is_copied_without_what_is_being_written(tmp_path: Path) -> None:
    run = tmp_path / "from"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/last.ckpt").write_text("weights")
    (run / "checkpoints/.last.12.ckpt").write_text("half")
    (run / "metrics.csv").write_text("epoch\n0\n")
    assert synced(tmp_path).returncode == 0
    found = {str(p.relative_to(tmp_path / "to")) for p in (tmp_path / "to").rglob("*")}
    assert found == {"checkpoints", "checkpoints/last.ckpt", "metrics.csv"}
    (tmp_path / "to/notes.txt").write_text("mine")
    (run / "metrics.csv").unlink()
    assert synced(tmp_path).returncode == 0
    assert (tmp_path / "to/notes.txt").exists()
    assert (tmp_path / "to/metrics.csv").exists()  # nobody said that it was part of this run


def test_a_run_that_is_replaced_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    kept, run = tmp_path / "to", tmp_path / "from"
    (kept / "checkpoints").mkdir(parents=True)
    for name in ("checkpoints/best.ckpt", "predictions.tsv", "run.json"):
        (kept / name).write_text("old")
    code = f'''restore_run "{kept}" "{run}" || exit
    rm "{run}/checkpoints/best.ckpt" "{run}/predictions.tsv"
    echo new >"{run}/run.json"
    echo mine >"{kept}/notes.txt"
    sync_run "{run}" "{kept}"'''
    done = bash(code, "say.sh", "sync_checkpoints.sh")
    assert done.returncode == 0, done.stderr
    assert {p.name for p in kept.iterdir()} == {"checkpoints", "run.json", "notes.txt"}
    assert not list((kept / "checkpoints").iterdir())
    assert (kept / "run.json").read_text() == "new\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_leaves_what_was_whole(tmp_path: Path) -> None:
    run = tmp_path / "from"
    (run / "checkpoints").mkdir(parents=True)
    (tmp_path / "to").mkdir()
    code = f'''mount -t tmpfs -o size=256k tmpfs "{tmp_path}/to"
    here="{tmp_path}" sync_patience=0
    head -c 100000 /dev/zero >"{run}/checkpoints/last.ckpt"
    sync_last "{run}" "{tmp_path}/to" || exit 1
    head -c 400000 /dev/urandom >"{run}/checkpoints/last.ckpt"
    sync_last "{run}" "{tmp_path}/to"
    echo "status $?" $(stat -c %s "{tmp_path}/to/checkpoints/last.ckpt")
    ls -A "{tmp_path}/to/checkpoints"
    umount "{tmp_path}/to"'''
    text = "\n".join([part("say.sh"), part("sync_checkpoints.sh"), code])
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-uo", "pipefail", "-c", text],
        capture_output=True, text=True, check=False, env={**os.environ, "SLURM_JOB_ID": "7"},
    )  # fmt: skip
    assert done.stdout == "status 73 100000\nlast.ckpt\n", done.stderr
    assert "No space left on device" in done.stderr
    assert "What was copied before is whole" in done.stderr


# --- a node


def test_each_gpu_has_the_processors_of_its_numa_node(tmp_path: Path) -> None:
    """On MI300A all GPUs have one location_id, and only the domain tells them apart."""
    tree = Tree(tmp_path).cpu()
    for domain in range(4):
        tree.amd(MI300A, 2, domain=domain)
    addresses = sorted(p.name for p in (tmp_path / "sys/bus/pci/devices").iterdir())
    for number, address in enumerate(addresses):
        (tmp_path / f"sys/bus/pci/devices/{address}/numa_node").write_text(f"{number}\n")
        node = tmp_path / f"sys/devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{24 * number}-{24 * number + 23},{96 + 24 * number}\n")
    done = bash(
        "for gpu in 0 1 2 3 4; do cpus_near_gpu $gpu; done", "job_setup.sh",
        AAM_SYS=str(tmp_path / "sys"),
    )  # fmt: skip
    assert done.stdout.splitlines() == ["0-23,96", "24-47,120", "48-71,144", "72-95,168"]
    assert bash("cpus_near_gpu 0", "job_setup.sh", AAM_SYS=str(tmp_path / "none")).stdout == ""


def test_interfaces_are_found_in_the_order_of_the_patterns(tmp_path: Path) -> None:
    for name in ("lo", "eth0", "hsi0", "hsn1", "hsn0"):
        (tmp_path / "class/net" / name).mkdir(parents=True)
    code = "interfaces=('hsn*' 'hsi*'); find_interfaces; interfaces=('ib*'); find_interfaces"
    done = bash(code, "job_setup.sh", AAM_SYS=str(tmp_path))
    assert done.stdout == "hsn0,hsn1\n"


@pytest.mark.parametrize(
    ("word", "local"), [("--fsdp", "yes"), ("--fsdp-sharded-checkpoint", "no")]
)
def test_parts_of_a_checkpoint_are_written_where_all_nodes_see_them(word: str, local: str) -> None:
    code = f"""command=pretrain flags=() input_flags='' output_flags='' resumable=yes local_run=yes
    read_options --lr 0.1 {word} --seed 1
    echo "$local_run"
    """
    assert bash(code, "program.sh").stdout.strip() == local


def test_the_container_is_started_as_the_launcher_would_start_it(tmp_path: Path) -> None:
    """The same flags in the same order; mounts and variables are the job's own."""
    table = tmp_path / 'a,"b" table.biom'
    table.write_text("x")
    code = f"""command=pretrain flags=(--distributed) input_flags=--table output_flags=--output-dir
    resumable=yes writes_folder=yes local_run=no engine=/bin/e image=/i.sif
    engine_flags=({" ".join(contained(""))})
    devices=() binds=() variables=(A='b c') record='' instead=() plugin_path='' here=/h
    whole_nodes=yes mask='' carried_patterns='@(SLURM_*)' never_carried='@(SLURM_NODELIST)'
    read_options --table "$TABLE" --output-dir "{tmp_path}/out" --resume-from auto
    program
    printf '%s\\0' "${{started[@]}}"
    """
    done = bash(code, "job_setup.sh", "program.sh", TABLE=str(table), SLURM_NODELIST="n1")
    words = done.stdout.split("\0")[:-1]
    plan = Plan(
        engine="apptainer", program="/bin/e", place="/i.sif", workdir="/h/home",
        words=("pretrain", "--distributed", "--table", str(table), "--output-dir",
               f"{tmp_path}/out", "--resume-from", "auto"),
        mounts=(Mount("/h", "/h", True, "", ""), Mount("/h/tmp", "/tmp", True, "", ""),
                Mount(f"{tmp_path}/out", f"{tmp_path}/out", True, "", ""),
                Mount(str(table), str(table), False, "", "")),
    )  # fmt: skip
    expected = list(command(plan))
    at = words.index("/usr/bin/env")
    variables = words[at + 1 : words.index("aam")]
    assert words[: at + 1] + words[words.index("aam") :] == expected, done.stderr
    assert "SLURM_JOB_ID=7" in variables
    assert "A=b c" in variables
    assert "HOME=/h/home" in variables
    assert not [word for word in variables if word.startswith("SLURM_NODELIST")]
