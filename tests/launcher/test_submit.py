"""`aam-launch submit`: the script of a job, its arguments and options."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aam.contract.errors import CannotCreate
from aam.contract.options import parse_known, specs
from launcher.engines.sif import record_of
from launcher.images import index
from launcher.options.submit import SubmitOptions
from launcher.slurm import history, job_file, queue
from launcher.slurm.script import Allocation, script
from tests.support.launches import sif, without_flock
from tests.support.submissions import ROOT, SHELLCHECK, WORDS, queued, slurm_and_image, submit


def test_a_dry_run_needs_no_slurm_and_prints_the_summary_and_the_script(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--time", "2:00:00", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Image rocm64 is not built" in done.stderr
    summary, script = done.stdout.split("\n\n")
    assert dict(line.split(maxsplit=1) for line in summary.splitlines()[:5]) == {
        "nodes": "1 node, 1 rank each, a test site",
        "time": "2:00:00; it stops 600 s before its limit, and is queued again",
        "image": f"rocm64, '{place}/images/rocm64.sif' (apptainer)",
        "device": "a GPU for each rank",
        "command": f"aam pretrain --table {place}/table.biom --tree {place}/tree.nwk "
        f"--output-dir {place}/out",
    }
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert len(lines) < 20
    header = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert header == [
        "--job-name=pretrain", "--partition=gpu", "--nodes=1", "--ntasks-per-node=1",
        "--time=2:00:00", "--requeue", "--open-mode=append",
        f"--output={place}/out-%j.log",
    ]  # fmt: skip
    assert not (place / "out").exists()


def test_a_rank_on_a_shared_node_gets_the_processors_of_its_gpu(place: Path) -> None:
    with (place / "site.yaml").open("a") as stream:
        stream.write("cpus_per_node: 48\n")
    shared = submit(place, *WORDS, "--gpus", "2", "--time", "2:00:00", "--dry-run")
    assert "#SBATCH --cpus-per-task=12\n" in shared.stdout
    with (place / "site.yaml").open("a") as stream:
        stream.write("whole_nodes: true\n")
    alone = submit(place, *WORDS, "--gpus", "2", "--time", "2:00:00", "--dry-run")
    assert "--cpus-per-task" not in alone.stdout


def test_the_job_file_holds_the_request(place: Path) -> None:
    queued(place, *WORDS, "--env", "A=b c", "--force")
    job = job_file.read(place / "out/.aam-job.json")
    assert job.arguments == ("--table", f"{place}/table.biom", "--tree", f"{place}/tree.nwk",
                             "--output-dir", f"{place}/out")  # fmt: skip
    sif = place / "images/rocm64.sif"
    image = job.image
    assert (image.engine, image.name, image.place) == ("apptainer", "rocm64", str(sif))
    assert (image.bytes, image.mtime_ns) == (sif.stat().st_size, sif.stat().st_mtime_ns)
    assert (job.ranks, job.warn_seconds, job.requeue, job.force) == (1, 600, True, True)
    assert job.gpus
    assert job.chose_image
    assert job.settings.env["A"] == ("b c", "command line, --env")
    assert job.of_site.number("stage_most_gb") == 10
    settings = job.node_settings({})
    assert (settings.image.value, settings.runtime.value) == ("rocm64", "apptainer")
    assert settings.scratch.value == "/tmp"


def test_a_job_in_an_image_for_the_processor_needs_no_gpu_of_its_nodes(place: Path) -> None:
    images = slurm_and_image(place, "echo 41").parent
    cpu = sif(images / "cpu.sif")
    index.write(images, "cpu", "sif", record_of(cpu))
    done = submit(place, *WORDS, "--gpus", "1", "--image", "cpu")
    assert done.returncode == 0, done.stderr
    job = job_file.read(place / "out/.aam-job.json")
    assert not job.gpus
    assert not job.chose_image


def test_variables_of_sbatch_do_not_outrank_the_script(place: Path) -> None:
    """`sbatch` prints its variables."""
    slurm_and_image(place, f"export >>{place}/variables; echo 41")
    variables = {"SBATCH_TIMELIMIT": "1", "SBATCH_ACCOUNT": "mine", "SBATCH_QOS": "high"}
    options = ("--gpus", "1", "--account", "ours")
    done = submit(place, *options, *WORDS, SLURM_CONF="/etc/c", **variables)
    assert done.returncode == 0, done.stderr
    found = (place / "variables").read_text()
    assert "SLURM_CONF" in found
    # The command names the account, and nothing names a QOS.
    assert set(re.findall(r"SBATCH_\w+", found)) == {"SBATCH_QOS"}


def test_a_job_whose_node_sees_another_output_folder_ends_at_once(place: Path) -> None:
    """The folder exists on the login node alone; on the node it would be made on its own disk."""
    script = queued(place, *WORDS)
    (place / "out").rename(place / "on-the-login-node")
    (place / "out").mkdir()
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 66
    assert done.stderr == (
        f"aam-job: No job file: '{place}/out/.aam-job.json' does not exist on "
        f"{os.uname().nodename}; choose an output folder that all nodes see, or submit the job "
        "again.\naam-job: ended with status 66\n"
    )
    assert not list((place / "out").iterdir())


def test_the_same_request_gives_the_same_script(place: Path) -> None:
    first, second = (submit(place, *WORDS, "--gpus", "1", "--dry-run").stdout for _ in range(2))
    assert first == second


def test_a_site_decides_the_image_as_a_host_would(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--image", "rocm62", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"image     rocm62, '{place}/images/rocm62.sif' (apptainer)\n" in done.stdout


@pytest.mark.skipif(SHELLCHECK is None and "CI" not in os.environ, reason="no shellcheck")
@pytest.mark.parametrize(
    "more", [(), ("--image", "rocm62"), ("--runtime", "native", "--device", "cpu")]
)
def test_scripts_are_clean(place: Path, more: tuple[str, ...]) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run", "--force", *more)
    assert done.returncode == 0, done.stderr
    assert SHELLCHECK is not None
    script = done.stdout[done.stdout.index("#!") :]
    argv = [SHELLCHECK, "--exclude=SC1091", "-"]  # /etc/profile is not followed
    checked = subprocess.run(argv, input=script, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(WORD, WORD, WORD)
def test_any_path_arrives_as_it_was_written(python: str, code: str, job: str) -> None:
    text = script(Allocation("n"), "about", ["a/1.0", "b"], python, code, job)
    (line,) = (line for line in text.split("\nexport ")[0].split("exit 69\n")[-1:])
    shown = subprocess.run(
        ["bash", "-c", f"{line}\nprintf '%s\\0' \"$python\" \"$code\" \"$job\""],
        capture_output=True, check=True,
    )  # fmt: skip
    assert shown.stdout.decode().split("\0")[:-1] == [python, code, job]


def test_a_submission_needs_no_file_locks(place: Path) -> None:
    slurm_and_image(place, "echo 41")
    done = submit(place, *WORDS, "--gpus", "1", LD_PRELOAD=without_flock(place))
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["Job", "41:"]), done.stderr
    assert (place / "out/.aam-job").read_text() == "41\n"


def test_of_two_submissions_at_once_one_gets_the_output(tmp_path: Path) -> None:
    """The queue is listed under the lock, when no other submission can add a job to it."""

    def queue_of_another() -> dict[str, queue.Queued]:
        with (
            pytest.raises(CannotCreate, match="belongs to another submission"),
            history.reserved(tmp_path, True, dict),
        ):
            pytest.fail("two submissions have one output")
        return {"41": queue.Queued("41", "PENDING", "", "")}

    (tmp_path / ".aam-job").write_text("41\n")
    with (
        pytest.raises(CannotCreate, match=r"belongs to job 41 \(PENDING\)"),
        history.reserved(tmp_path, True, queue_of_another),
    ):
        pytest.fail("the output of a job is given to another one")


def test_no_text_of_a_user_or_a_site_enters_shell_code(place: Path) -> None:
    """What the script does not need stands in the job file alone."""
    with (place / "site.yaml").open("a") as site:
        site.write("plugin: ['/a,destination=/etc']\nlocal: '${A-$(touch made)}'\n")
        site.write("interfaces: ['hsn* $(touch made)']\nnetwork: {A: '1\\ntouch made'}\n")
    done = submit(place, *WORDS, "--gpus", "1", "--env", "A=$(touch made)", "--lr=1", "--dry-run")
    assert done.returncode == 0, done.stderr
    script = done.stdout[done.stdout.index("#!") :]
    assert "made" not in script
    assert "--lr" not in script
    assert "destination" not in script
    with (place / "site.yaml").open("a") as site:
        site.write("pass_env: ['X*) ]]; then touch made; fi; if [[ a == @(b']\n")
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    assert (done.returncode, done.stdout) == (78, ""), done.stderr
    assert "Not the name of a variable" in done.stderr
    assert "site.yaml:" in done.stderr


def test_a_launcher_that_the_nodes_may_not_see_is_a_warning(place: Path) -> None:
    with (place / "site.yaml").open("a") as site:
        site.write(f"shared: ['{place}']\n")
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "The nodes may not see" in line)
    assert f"the launcher: '{sys.executable}' is not below {place}" in line


def test_names_with_spaces_and_quotes(place: Path) -> None:
    odd = place / 'it\'s a "run" 100%'
    done = submit(
        place, *WORDS[:-1], str(odd), "--gpus", "1", "--dry-run", "--job-name", 'my "job" \\1'
    )
    assert done.returncode == 0, done.stderr
    assert '#SBATCH "--job-name=my \\"job\\" \\\\1"' in done.stdout
    assert f'#SBATCH "--output={place}/it\'s a \\"run\\" 100%%-%j.log"' in done.stdout
    assert f"job={shlex.quote(f'{odd}/.aam-job.json')}" in done.stdout


def test_the_log_of_a_path_with_a_percent_sign(place: Path) -> None:
    slurm_and_image(place, "echo 41")
    done = submit(place, *WORDS[:-1], "100%job a", "--gpus", "1")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("follow"))
    assert shlex.split(line) == ["follow", "tail", "-F", f"{place}/100%job a-41.log"]


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
    assert f"cpu, '{place}/images/cpu.sif' (apptainer)\ndevice    the processor\n" in done.stdout
    refused = submit(place, *args, "--gpus", "4")
    assert refused.returncode == 64
    assert "`train` without the transformer runs in one process: 1 nodes, 4 GPUs" in refused.stderr
    network = submit(place, *args, "--members", "transformer").stdout
    assert "#SBATCH --ntasks-per-node=4\n" in network
    assert f"rocm64, '{place}/images/rocm64.sif'" in network
    (place / "members.yaml").write_text("members: [kernel, transformer]\n")
    varied = submit(place, *args, "--array", "members.yaml").stdout
    assert f"rocm64, '{place}/images/rocm64.sif'" in varied


@pytest.mark.parametrize("args", [["--nodes=2", "a", "--time", "5"], ["a", "--nodes", "2"]])
def test_options_of_the_job_stand_anywhere(args: list[str]) -> None:
    found, rest = parse_known(specs(SubmitOptions), args)
    assert rest == ["a"]
    assert found["--nodes"] == 2


def test_a_job_stops_before_whatever_limit_it_gets(place: Path) -> None:
    """It reads its limit when it starts, so an option of sbatch counts."""
    done = submit(place, *WORDS, "--gpus", "1", "--time", "10", "--dry-run")
    assert "#SBATCH --signal" not in done.stdout
    assert "it stops 600 s before its limit, and is queued again" in done.stdout
    done = submit(place, *WORDS, "--gpus", "1", "--no-requeue", "--dry-run")
    assert "before its limit" not in done.stdout
    for printed, known in (("2026-11-23T09:00:00", True), ("", False), ("N/A", False)):
        program = place / "squeue"
        program.write_text(f"#!/bin/sh\necho '{printed}'\n")
        program.chmod(0o755)
        code = "import os; from launcher.slurm.queue import end_time as e; print(e(os.environ))"
        shown = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PATH": f"{place}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
                 "SLURM_JOB_ID": "7"},
        )  # fmt: skip
        assert (float(shown.stdout) > 10**9) == known, printed
    assert queue.end_time({"SLURM_JOB_END_TIME": "12"}) == 12


def test_the_last_task_of_an_array_is_not_named_as_the_array(place: Path) -> None:
    """Slurm gives it the number of the array; `squeue` prints a line for each task of that."""
    variables = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    assert queue.job_of(variables) == "7_3"
    (place / "squeue").write_text('#!/bin/sh\n[ "$2" = --jobs=7_3 ] && echo 2026-11-23T09:00:00\n')
    (place / "squeue").chmod(0o755)
    code = "import os; from launcher.slurm.queue import end_time; print(end_time(os.environ))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PATH": f"{place}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **variables},
    )  # fmt: skip
    assert float(shown.stdout) > 10**9


def test_a_script_of_a_job_names_what_runs_here(place: Path) -> None:
    done = submit(place, *WORDS, "--here", "--dry-run")
    assert done.returncode == 64
    assert "--here is for the script of one job: no job has started it" in done.stderr
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "3"}
    done = submit(place, *WORDS, "--here", "--dry-run", **variables)
    assert "nodes     2 nodes, 3 ranks each, a test site\n" in done.stdout


def test_a_second_start_of_a_script_reads_the_job_file_of_the_first(place: Path) -> None:
    """`srun` prints the words after its own options."""
    slurm_and_image(place, "echo 41")
    srun = place / "bin/srun"
    srun.write_text('#!/bin/sh\necho "$@"\n')
    srun.chmod(0o755)
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "2", "SLURM_CPUS_ON_NODE": "8"}
    argv = [sys.executable, "-m", "launcher.cli", "submit", *WORDS, "--here"]

    def start(**more: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{place}/bin:/usr/bin:/bin", "HOME": str(place), "PYTHONPATH": str(ROOT),
            "AAM_IMAGE_DIR": f"{place}/images", "TMPDIR": str(place), **variables, **more,
        }  # fmt: skip
        return subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=place)

    first = start()
    assert first.returncode == 0, first.stderr
    assert "aam-job: start 1, `aam pretrain`" in first.stderr
    assert "aam-job: ended with status 0" in first.stderr
    file = place / "out/.aam-job.json"
    counts = "--nodes=1 --ntasks-per-node=2 --ntasks=2 --cpus-per-task=4"
    assert first.stdout.startswith(f"--kill-on-bad-exit=1 --wait=0 {counts} /bin/sh -c ")
    assert first.stdout.endswith(f"-m launcher.slurm.job --rank {file}\n")
    assert (place / "out/.aam-job").read_text() == "7\n"
    written = file.stat().st_mtime_ns
    (place / "out/run.json").write_text("{}")
    again = start(SLURM_RESTART_COUNT="1")
    assert again.returncode == 0, again.stderr
    assert "aam-job: start 2, `aam pretrain`" in again.stderr
    assert file.stat().st_mtime_ns == written
    other = start(SLURM_JOB_ID="8")
    assert other.returncode == 73
    assert "The output exists already" in other.stderr
