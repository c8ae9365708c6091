"""`aam-launch submit`: the script of a job, its arguments and options."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aam.contract.options import parse_known, specs
from launcher.engines import ENGINES
from launcher.images import usage
from launcher.options.submit import SubmitOptions
from launcher.plan.mounts import Mount
from launcher.plan.plan import Plan, use_record
from launcher.slurm.script import Allocation, Job, Program, script
from launcher.slurm.site import Site
from tests.support.launches import without_flock
from tests.support.submissions import SHELLCHECK, WORDS, queued, slurm_and_image, submit


def test_a_dry_run_needs_no_slurm_and_prints_the_script(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--time", "2:00:00", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Image rocm64 is not built" in done.stderr
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
    assert f"image={place}/images/rocm64.sif python=python" in lines
    assert f"type=bind,source={place}/tree.nwk,destination={place}/tree.nwk,ro" in done.stdout
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


def test_a_submission_is_a_use_of_the_image(place: Path) -> None:
    queued(place, *WORDS)
    image = place / "images/rocm64.sif"
    used = usage.last(Path(use_record(str(image.parent), "rocm64", "sif")))
    assert used is not None
    assert abs(time.time() - used) < 3600


def test_a_job_whose_node_sees_another_output_folder_ends_at_once(place: Path) -> None:
    """The folder exists on the login node alone; on the node it would be made on its own disk."""
    (check,) = (line for line in queued(place, *WORDS).splitlines() if line.startswith("file="))
    script = f"{check}\necho same"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
    (place / "out").rename(place / "on-the-login-node")
    (place / "out").mkdir()
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 73
    assert done.stderr == (
        f"aam-job: {os.uname().nodename} does not see the output folder: '{place}/out/.aam-job', "
        "which the submission made, does not exist there; choose a folder that all nodes see\n"
    )
    assert "file=" not in submit(place, *WORDS, "--gpus", "1", "--dry-run").stdout


def test_a_job_whose_node_does_not_see_an_input_ends_at_once(place: Path) -> None:
    text = queued(place, *WORDS)
    parts = ("^image=.*$", r"required=\(.*\)", "^fail.*$", r'^for path in "\${required.*$')
    script = "\n".join(re.findall("|".join(parts), text, re.MULTILINE))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (place / "table.biom").rename(place / "on-the-login-node")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 66
    assert done.stderr == (
        f"aam-job: '{place}/table.biom' does not exist on {os.uname().nodename}; put it where all "
        "nodes see it\n"
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
def test_any_word_arrives_as_it_was_written(args: list[str]) -> None:
    job = Job(
        Allocation("n"), Program("pretrain", ("--table", *args), engine="native"), Site("n", {})
    )
    text = script(job)
    block = text[text.index("set -- pretrain") : text.index("fail() {")]
    shown = subprocess.run(
        ["bash", "-c", block + "printf '%s\\0' \"$@\""], capture_output=True, check=True
    )
    assert shown.stdout.decode().split("\0")[:-1] == ["pretrain", "--table", *args]


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
    text = script(Job(Allocation("n"), program, Site("n", {})))
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


def test_a_submission_needs_no_file_locks(place: Path) -> None:
    slurm_and_image(place, "echo 41")
    done = submit(place, *WORDS, "--gpus", "1", LD_PRELOAD=without_flock(place))
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["Job", "41:"]), done.stderr
    assert (place / "out/.aam-job").read_text() == "41\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pass_env: ['X*) ]]; then touch made; fi; if [[ a == @(b']", "Not the name of a variable"),
        ("plugin: ['/a,destination=/etc']", "A value that no job script can hold"),
        ("shared: ['/a,destination=/etc']", "A value that no job script can hold"),
        ("local: '${A-$(touch made)}'", "A value that no job script can hold"),
        ("local: '${A@P}'", "A value that no job script can hold"),
    ],
)
def test_no_text_of_a_site_enters_shell_code(place: Path, line: str, message: str) -> None:
    with (place / "site.yaml").open("a") as site:
        site.write(f"{line}\n")
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    assert (done.returncode, done.stdout) == (78, ""), done.stderr
    assert message in done.stderr
    assert "site.yaml:" in done.stderr


def entered(place: Path, passed: str, node: Path) -> subprocess.CompletedProcess[str]:
    """Run what a job script runs on each node before the image."""
    program = Program("pretrain", (), engine="native", passed=(passed,))
    text = script(Job(Allocation("n"), program, Site("n", {})))
    enter = text[text.index("enter='") : text.index("step() {")]
    line = next(line for line in text.splitlines() if line.startswith("passed="))
    code = f'{line}\n{enter}\nbash -c "$enter" run "$passed" 2 env -i "$(command -v printenv)"'
    variables = {"PATH": os.environ["PATH"], "node": str(node), "LAB_A": "a b", "OTHER": "c"}
    return subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, cwd=place, env=variables, check=False
    )


def test_patterns_of_variables_are_data(place: Path) -> None:
    done = entered(place, "LAB_*", place / "node")
    assert done.returncode == 0, done.stderr
    assert "LAB_A=a b" in done.stdout
    assert "OTHER" not in done.stdout
    hostile = "X) ]]; then touch made; fi; if [[ a == @(b"
    entered(place, hostile, place / "node")
    assert not list(place.rglob("made"))


def test_a_link_in_the_place_of_the_folder_of_a_job_is_not_followed(place: Path) -> None:
    (place / "mine").mkdir()
    (place / "node").symlink_to("mine")
    done = entered(place, "LAB_*", place / "node")
    assert done.returncode == 73
    assert "is no folder of this job" in done.stderr
    assert not list((place / "mine").iterdir())


def test_names_with_spaces_and_quotes(place: Path) -> None:
    odd = place / 'it\'s a "run" 100%'
    done = submit(
        place, *WORDS[:-1], str(odd), "--gpus", "1", "--dry-run", "--job-name", 'my "job" \\1'
    )
    assert done.returncode == 0, done.stderr
    assert '#SBATCH "--job-name=my \\"job\\" \\\\1"' in done.stdout
    assert f'#SBATCH "--output={place}/it\'s a \\"run\\" 100%%-%j.log"' in done.stdout
    assert shlex.quote(str(odd)) in done.stdout


def test_one_process_commands_take_one_gpu(place: Path) -> None:
    args = ["--site", "./site.yaml", "unifrac", "--table", "table.biom", "--tree", "tree.nwk",
            "--output", "d.npy"]  # fmt: skip
    done = submit(place, *args, "--nodes", "2")
    assert done.returncode == 64
    assert "`unifrac` runs in one process: 2 nodes" in done.stderr
    done = submit(place, *args, "--dry-run")
    assert "#SBATCH --signal" not in done.stdout
    assert "--no-requeue" in done.stdout
    assert submit(place, "explain").returncode == 64


def test_training_takes_the_gpus_of_a_node_for_the_network_alone(place: Path) -> None:
    (place / "m.tsv").write_text("sample-id\ty\n")
    args = ["--site", "./site.yaml", "--dry-run", "train", "--table", "table.biom", "--metadata",
            "m.tsv", "--metadata-column", "y", "--output-dir", "out"]  # fmt: skip
    done = submit(place, *args)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --ntasks-per-node=1\n" in done.stdout
    assert f"image={place}/images/cpu.sif" in done.stdout
    assert "/dev/kfd" not in done.stdout
    refused = submit(place, *args, "--gpus", "4")
    assert refused.returncode == 64
    assert "`train` without the transformer runs in one process: 1 nodes, 4 GPUs" in refused.stderr
    network = submit(place, *args, "--members", "transformer").stdout
    assert "#SBATCH --ntasks-per-node=4\n" in network
    assert f"image={place}/images/rocm64.sif" in network
    (place / "members.yaml").write_text("members: [kernel, transformer]\n")
    varied = submit(place, *args, "--array", "members.yaml").stdout
    assert f"image={place}/images/rocm64.sif" in varied


@pytest.mark.parametrize("args", [["--nodes=2", "a", "--time", "5"], ["a", "--nodes", "2"]])
def test_options_of_the_job_stand_anywhere(args: list[str]) -> None:
    found, rest = parse_known(specs(SubmitOptions), args)
    assert rest == ["a"]
    assert found["--nodes"] == 2


def test_a_job_stops_before_whatever_limit_it_gets(place: Path) -> None:
    """The script reads its limit when it starts, so an option of sbatch counts."""
    done = submit(place, *WORDS, "--gpus", "1", "--time", "10", "--dry-run")
    assert "#SBATCH --signal" not in done.stdout
    assert "--warn-seconds 600 --requeue" in done.stdout
    (end,) = (line for line in done.stdout.splitlines() if line.startswith("end="))
    for printed, least in (("2026-11-23T09:00:00", 10**9), ("", 0), ("N/A", 0)):
        program = place / "squeue"
        program.write_text(f"#!/bin/sh\necho '{printed}'\n")
        program.chmod(0o755)
        shown = subprocess.run(
            ["bash", "-c", f"{end}; echo $end"], capture_output=True, text=True, check=True,
            env={"PATH": f"{place}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"},
        )  # fmt: skip
        assert (int(shown.stdout.strip() or 0) > 0) == (least > 0), printed
    done = submit(place, *WORDS, "--gpus", "1", "--no-requeue", "--dry-run")
    assert "--warn-seconds" not in done.stdout


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
