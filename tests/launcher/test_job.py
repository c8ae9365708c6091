"""Jobs: the scripts of `slurm/`, what each rank runs, checks of a node, stops, restarts, ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from aam.contract import stop_file
from launcher import config
from launcher.commands import job
from launcher.commands.job import END, REQUEUE, outcome, request_stop, requested_stop
from launcher.plan.inputs import Request
from launcher.slurm.script import SubmitOptions, allocation_of
from launcher.slurm.site import Site
from launcher.system import quoted
from tests.support.commands import pretrain
from tests.support.launches import parse, program
from tests.support.submissions import ROOT, WORDS, queued

JOB = (sys.executable, str(ROOT / "launcher"), "job")
PRETRAIN = ("pretrain", "--table", "{folder}/table.biom", "--output-dir", "{folder}/out",
            "--device", "cpu")  # fmt: skip


def parsed(folder: Path, *words: str) -> Request:
    return parse([word.format(folder=folder) for word in words or PRETRAIN])


def site(folder: Path, text: str = "title: s\n") -> Site:
    (folder / "s.yaml").write_text(text)
    return config.site(str(folder / "s.yaml"))


def run(
    folder: Path, *words: str, stderr: IO[str] | int = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a part of a job as srun starts it."""
    environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder),
                   "TMPDIR": str(folder), "SLURM_JOB_ID": "7", **variables}  # fmt: skip
    argv = [word.format(folder=folder) for word in words]
    return subprocess.run(
        [*JOB, *argv], stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, cwd=folder
    )


@pytest.fixture
def place(place: Path) -> Path:
    (place / "bin").mkdir()
    return place


# --- what a rank runs


def test_several_ranks_train_together_on_the_gpus_of_the_site(place: Path) -> None:
    on_gpus = parsed(place, *PRETRAIN[:-2])
    amd, plain = site(place, "vendor: amd\n"), site(place)

    def argv(request: Any, of: Site, image: str, ranks: int) -> tuple[str, ...]:
        found: tuple[str, ...] = job.rank_request(request, of, image, 1, ranks, {}).argv
        return found

    assert argv(on_gpus, plain, "auto", 1) == on_gpus.argv
    assert argv(on_gpus, amd, "auto", 2)[-3:] == ("--distributed", "--device", "cuda")
    assert argv(on_gpus, amd, "cpu", 2)[-1:] == ("--distributed",)
    fsdp = parsed(place, *PRETRAIN, "--fsdp")
    assert "--distributed" not in argv(fsdp, plain, "auto", 2)


def test_a_restart_is_recognised_by_the_job_of_the_run(place: Path) -> None:
    request, again = parsed(place, *PRETRAIN, "--overwrite"), {"SLURM_RESTART_COUNT": "1"}
    own = {"SLURM_JOB_ID": "7"}
    assert not job.continues(request, {**own, **again})
    (place / "out").mkdir()
    (place / "out/run.json").write_text(json.dumps({"host": {"job": "7"}}))
    assert not job.continues(request, own)
    assert not job.continues(request, {**again, "SLURM_JOB_ID": "8"})
    assert job.continues(request, {**own, **again})
    found = job.rank_request(request, site(place), "auto", 1, 1, {**own, **again})
    assert (found.value("--resume-from"), found.value("--overwrite")) == ("auto", False)
    for damaged in ("{", "[]", '{"host": null}', "\0"):
        (place / "out/run.json").write_text(damaged)
        assert not job.continues(request, {**own, **again})


def test_ranks_meet_at_the_address_of_the_node_that_started_them(place: Path) -> None:
    present = {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7", "SLURM_CPUS_PER_TASK": "24"}
    request, of = parsed(place), site(place, "network: {NCCL_CROSS_NIC: 1, FI_A: 2}\n")
    expected = {"MASTER_ADDR": "10.0.0.7", "OMP_NUM_THREADS": "24"}
    assert job.rank_variables(request, of, 1, 1, present) == expected
    several = {**present, "NCCL_CROSS_NIC": "0", "OMP_NUM_THREADS": "1"}
    found = job.rank_variables(request, of, 2, 2, several)
    assert (found["NCCL_CROSS_NIC"], found["FI_A"], found["OMP_NUM_THREADS"]) == ("0", "2", "1")
    measures = parsed(place, "acceptance", "--output-dir", "o")
    assert "OMP_NUM_THREADS" not in job.rank_variables(measures, of, 1, 1, present)
    ranks = job.rank_variables(measures, of, 1, 4, present)
    assert ranks["OMP_NUM_THREADS"] == "24"


def test_a_plugin_of_the_network_comes_with_its_folder(place: Path) -> None:
    of = site(place, f"plugin: [{place}/bin, {place}/none]\n")
    request = parsed(place)
    assert job.rank_request(request, of, "auto", 1, 2, {}).launcher_options == {}
    flags = job.rank_request(request, of, "auto", 2, 2, {}).launcher_options
    assert flags["--bind"] == (f"{place}/bin",)
    assert flags["--env"][0].endswith(f":{place}/bin")


def test_values_of_env_come_from_the_variables_of_the_job(place: Path) -> None:
    given = {"--env": ("A", "B"), "--site": "s"}
    assert job.with_values(given, {"AAM_JOB_ENV_A": "a b"}) == {**given, "--env": ("A=a b", "B")}


# --- checks on the node


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("pretrain", "--table", "{folder}/none.biom", "--output-dir", "{folder}/out"), 66,
         "{node}: No file for --table: '{folder}/none.biom' does not exist on {node}; "
         "put it where all nodes see it.\n"),
        (("--runtime", "native", *PRETRAIN[:3], "--output-dir", "/proc/absent/out", "--device",
          "cpu"), 73, "No room for --output-dir: the disk of '/proc'"),
        (("--runtime", "native", "--digest", "sha256:1", *PRETRAIN), 65,
         "The image has changed since the job was submitted"),
        ((*PRETRAIN, "--tabel", "x"), 64, "did you mean '--table'?"),
    ],
)  # fmt: skip
def test_a_mistake_ends_a_rank_with_one_sentence(
    place: Path, words: tuple[str, ...], status: int, sentence: str
) -> None:
    done = run(place, "--rank", "--site", "workstation", *words)
    assert done.returncode == status, done.stderr
    assert sentence.format(folder=place, node=os.uname().nodename) in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"aam-job: {os.uname().nodename}: ")
    assert not (place / "out").exists()


def test_a_site_that_was_edited_while_the_job_waited_is_one_sentence(place: Path) -> None:
    (place / "s.yaml").write_text("partiton: a\n")
    done = run(place, "--site", "{folder}/s.yaml", *PRETRAIN)
    assert done.returncode == 78
    first, last = done.stderr.splitlines()
    assert "An unknown key: 'partiton'" in first
    assert last == "aam-job: ended with status 78"


# --- the batch process


@pytest.mark.parametrize("status", [0, 65, 137])
def test_the_batch_process_starts_the_ranks_and_ends_with_their_status(
    place: Path, status: int
) -> None:
    program(place / "bin/srun", f'echo "$@" >>{place}/argv; exit {status}')
    done = run(place, "--site", "workstation", *PRETRAIN, SLURM_NTASKS_PER_NODE="2",
               SLURM_CPUS_ON_NODE="8", SLURM_JOB_NODELIST="n1")  # fmt: skip
    assert done.returncode == status, done.stderr
    assert done.stderr == (
        f"aam-job: start 1, `aam pretrain` on n1\naam-job: ended with status {status}\n"
    )
    (line,) = (place / "argv").read_text().splitlines()
    counts = "--nodes=1 --ntasks-per-node=2 --ntasks=2 --cpus-per-task=4"
    assert line.startswith(f"--quiet --kill-on-bad-exit=1 --wait=0 {counts} ")
    words = " ".join(PRETRAIN).format(folder=place)
    assert line.endswith(f"/launcher job --rank --site workstation {words}")
    assert not list(place.glob("aam-*/7-*"))


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("srun: error: n1: task 1: Killed", 137),
        ("srun: error: n1: tasks 0-1,3: Exited with exit code 65", 65),
        ("srun: error: n2: task 3: Bus error (core dumped)", 135),
        ("srun: error: the node is gone", 143),
    ],
)
def test_the_status_is_that_of_the_rank_that_failed_first(
    place: Path, line: str, status: int
) -> None:
    """srun returns the highest status: that of the ranks that Slurm ended because of the first."""
    late = "srun: error: n1: task 0: Terminated" if "task" in line else ""
    program(place / "bin/srun", f"echo '{line}' >&2; echo '{late}' >&2; exit 143")
    with (place / "log").open("a+") as log:
        log.write("srun: error: n1: task 9: Exited with exit code 9\n")  # of an earlier start
        log.flush()
        done = run(place, "--site", "workstation", *PRETRAIN, stderr=log)
    assert done.returncode == status
    assert (place / "log").read_text().endswith(f"aam-job: ended with status {status}\n")


def test_a_signal_before_the_limit_queues_the_job_again(place: Path) -> None:
    """In place of the ranks a program waits for the request, and counts steps as `aam` does."""
    program(place / "bin/srun", "kill -USR1 $PPID; while ! [ -s $AAM_STOP_FILE ]; do sleep 0.1",
            "done; printf 9 >${AAM_STOP_FILE%/*}/steps; exit 75")  # fmt: skip
    program(place / "bin/scontrol", f'echo "$@" >{place}/requeued; kill -TERM $PPID')
    done = run(place, "--site", "workstation", *PRETRAIN)
    assert done.returncode == -15  # Slurm has ended the job to queue it again
    assert done.stderr.endswith("aam-job: stopped after 9 optimizer steps; queued again\n")
    assert (place / "requeued").read_text() == "requeue 7\n"


def test_the_script_of_a_job_starts_it(place: Path) -> None:
    text = queued(place, *WORDS)
    text = text.replace(f"\nexec {quoted(sys.executable)} ", "\nexec /bin/echo ")
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ROOT}/launcher job --digest sha256:")


STARTS = """while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
"""An srun that becomes the one rank."""


def test_modules_in_the_folder_of_the_user_are_not_run(place: Path) -> None:
    """Neither by the batch process nor by a rank, whatever the name of the module is."""
    for name in ("subprocess", "signal", "yaml", "launcher", "aam", "site"):
        (place / f"{name}.py").write_text(f"open({str(place / 'RUN')!r}, 'w')\n")
    program(place / "bin/srun", STARTS)
    done = run(place, "--digest", "sha256:1", "--site", "workstation", "--runtime", "native",
               *PRETRAIN)  # fmt: skip
    assert done.returncode == 65, done.stderr
    assert "The image has changed since the job was submitted" in done.stderr
    assert not (place / "RUN").exists()


def test_a_rank_uses_the_folder_of_the_batch_process(place: Path) -> None:
    """Slurm, or a prolog of the site, may give a step a TMPDIR of its own."""
    (place / "step").mkdir()
    lines = STARTS.replace("exec", f"TMPDIR={place}/step exec")
    program(place / "bin/srun", f"echo $AAM_STOP_FILE >{place}/stop\n{lines}")
    done = run(place, "--digest", "sha256:1", "--site", "workstation", "--runtime", "native",
               *PRETRAIN)  # fmt: skip
    assert done.returncode == 65, done.stderr
    assert not list((place / "step").iterdir())
    own = place / f"aam-{os.geteuid()}/7-{os.uname().nodename}"
    assert (place / "stop").read_text() == f"{own}/stop\n"


def test_a_node_without_srun_is_one_sentence(place: Path) -> None:
    done = run(place, "--site", "workstation", *PRETRAIN, PATH=f"{place}/bin")
    assert done.returncode == 69
    lines = done.stderr.splitlines()
    assert lines[1].startswith("aam-job: A job needs Slurm's srun: none is on PATH on ")
    assert lines[2:] == ["aam-job: ended with status 69"]
    assert not list(place.glob("aam-*/7-*"))


@pytest.mark.parametrize(
    ("option", "name", "value", "status", "sentence"),
    [
        ("--no-memory-check", "SLURM_JOB_ID", "", 64, "This process belongs to no job of Slurm"),
        ("--no-memory-check", "SLURM_JOB_NUM_NODES", "2(x2)", 78, "{}='2(x2)'; unset it"),
        ("--no-memory-check", "SLURM_CPUS_PER_TASK", "2(x2)", 78, "{}='2(x2)'; unset it"),
        ("--rank", "SLURM_LOCALID", "2(x2)", 78, "{}='2(x2)'; unset it"),
    ],
)
def test_a_wrong_variable_of_slurm_is_one_sentence(
    place: Path, option: str, name: str, value: str, status: int, sentence: str
) -> None:
    program(place / "bin/srun", "true")
    done = run(place, option, "--site", "workstation", *PRETRAIN, **{name: value})
    assert done.returncode == status, done.stderr
    assert sentence.format(name) in done.stderr
    assert "Traceback" not in done.stderr


# --- stop requests, and the decision to queue a job again


def test_the_first_request_counts(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    assert requested_stop(file) == ""
    request_stop(file, END)
    request_stop(file, REQUEUE)
    assert requested_stop(file) == END


def test_steps_of_several_fits_add_up(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    assert stop_file.steps_made(file) == 0
    stop_file.count_steps(file, 2)
    stop_file.count_steps(file, 5)
    assert stop_file.steps_made(file) == 7


@pytest.mark.parametrize(
    ("status", "reason", "steps", "expected", "sentence"),
    [
        (0, "", 0, (False, 0), "ended with status 0"),
        (137, "", 9, (False, 137), "ended with status 137"),
        (0, REQUEUE, 9, (False, 0), "ended with status 0"),  # it was complete
        (75, REQUEUE, 9, (True, 75), "stopped after 9 optimizer steps; queued again"),
        # The first rank has saved and ended, and Slurm has ended the others.
        (143, REQUEUE, 9, (True, 75), "stopped after 9 optimizer steps; queued again"),
        (143, REQUEUE, 0, (False, 143), "ended with status 143"),  # nothing was saved
        (75, REQUEUE, 2, (False, 75), "ended with status 75, stopped after 2 optimizer steps; not "
         "queued again, because it would not get further: give the job more time (--time)"),
        (75, END, 9, (False, 75), "ended with status 75, stopped on request; continue with "
         "--resume-from auto, a search with its command"),
        (73, REQUEUE, 9, (False, 73), "ended with status 73"),
    ],
)  # fmt: skip
def test_how_a_job_ends(
    status: int, reason: str, steps: int, expected: tuple[bool, int], sentence: str
) -> None:
    assert outcome(status, reason, steps, False) == (*expected, sentence)
    if expected[0]:  # a cancelled job is not queued again
        assert outcome(status, reason, steps, True)[:2] == (False, 143)


@pytest.mark.medium
def test_training_stops_at_a_stop_file_whenever_it_was_made(
    study_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stop"
    request_stop(file, REQUEUE)
    monkeypatch.setenv(stop_file.VARIABLE, str(file))
    args = ("--penalty", "0", "--epochs", "2", "--num-workers", "0")
    assert pretrain(study_dir, tmp_path / "run", *args) == 75
    assert stop_file.steps_made(file) == 1
    file.unlink()
    assert pretrain(study_dir, tmp_path / "run", *args, "--resume-from", "auto") == 0
    assert stop_file.steps_made(file) > 2


# --- the scripts of slurm/


FILES = {path.name: path.read_text() for path in sorted((ROOT / "slurm").glob("*.sh"))}


def test_a_file_can_be_run() -> None:
    assert all(os.access(ROOT / "slurm" / name, os.X_OK) for name in FILES)


@pytest.mark.parametrize(
    ("name", "command", "nodes", "ranks"),
    [("pretrain_single", "pretrain", 1, 1), ("pretrain_node", "pretrain", 1, 4),
     ("pretrain_multi", "pretrain", 4, 4), ("train", "train", 1, 1), ("predict", "predict", 1, 1)],
)  # fmt: skip
def test_a_file_requests_what_submit_requests(
    name: str, command: str, nodes: int, ranks: int
) -> None:
    site = config.site("cosmos")
    gpus = ranks if command != "predict" else None
    requested = SubmitOptions(nodes=nodes, gpus=gpus, time="" if gpus else "1:00:00", job_name=name)
    options = {"--members": ("transformer",)} if command == "train" else {}
    expected = list(allocation_of(Request(command, options), requested, site, "%x-%j.out").options)
    found = re.findall(r"^#SBATCH (.*)$", FILES[f"{name}.sh"], re.MULTILINE)
    assert found == expected
    assert FILES[f"{name}.sh"].endswith(f'\nexec aam-launch job {command} "$@"\n')


def test_a_node_is_shown_to_a_user_without_an_image() -> None:
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                   "PYTHONPATH": str(ROOT), "USER": "ada", "HOME": "/nonexistent"}  # fmt: skip
    argv = [ROOT / "slurm/job_setup.sh"]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert re.search(r"^scratch +\d+ GB free at '", done.stdout, re.MULTILINE), done.stderr
    assert re.search(r"^network +.*\blo\b", done.stdout, re.MULTILINE)
