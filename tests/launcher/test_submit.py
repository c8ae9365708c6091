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
from aam.contract.options import specs
from aam.contract.options.command_line import parse_known
from aam.contract.version import __version__
from launcher import config
from launcher.commands.submit import reserved
from launcher.engines.sif import record_of
from launcher.images import index
from launcher.slurm import queue, script
from launcher.slurm.queue import seconds
from launcher.slurm.script import SubmitOptions
from tests.support.launches import program, sif, without_flock
from tests.support.submissions import (
    ROOT,
    SHELLCHECK,
    SITE,
    WORDS,
    script_of,
    slurm_and_image,
    submit,
)


def job_words(text: str) -> list[str]:
    """Return the words of the last command of a script, which starts the job."""
    return shlex.split(text[text.index("\nexec ") :].replace("\\\n", " "))


def header(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines()
            if line.startswith("#SBATCH")]  # fmt: skip


def test_a_dry_run_needs_no_slurm_and_prints_the_script(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--time", "2:00:00", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Image rocm64 is not built" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert header(done.stdout) == [
        "--job-name=pretrain", "--partition=gpu", "--nodes=1", "--ntasks-per-node=1",
        "--time=2:00:00", "--signal=B:USR1@600", "--requeue", "--open-mode=append",
        f"--output={place}/out-%j.log",
    ]  # fmt: skip
    assert [line for line in lines if line.startswith("# ")][:4] == [
        f"# aam pretrain: 1 node, 1 rank each, a test site; by aam-launch {__version__}",
        "# time: 2:00:00; it stops 600 s before its limit, and is queued again",
        f"# image: rocm64 by apptainer, '{place}/images/rocm64.sif'",
        "# device: a GPU for each rank",
    ]
    assert job_words(done.stdout) == [
        "exec", sys.executable, str(ROOT / "launcher"), "job", "--site", f"{place}/site.yaml",
        "--runtime", "apptainer", "--image", "rocm64", "--image-dir", f"{place}/images",
        "pretrain", "--table", f"{place}/table.biom", "--tree", f"{place}/tree.nwk",
        "--output-dir", f"{place}/out", "--device", "cuda",
    ]  # fmt: skip
    assert not (place / "out").exists()


def test_a_script_has_no_long_lines(place: Path) -> None:
    more = (
        "--sbatch",
        "qos=a",
        "--env",
        "A=b",
        "--lr",
        "0.1",
        "--epochs",
        "3",
        "--batch-size",
        "16",
    )
    shown = script_of(place, *WORDS, "--gpus", "4", *more, "--seed", "4")
    for path, short in (
        (str(place), "/runs"),
        (sys.executable, "/bin/python"),
        (str(ROOT), "/opt"),
    ):
        shown = shown.replace(path, short)
    assert max(map(len, shown.splitlines())) <= 120


def test_values_of_env_are_in_no_file_and_no_command_line(place: Path) -> None:
    slurm_and_image(place, f'echo "$@" >>{place}/seen; export >>{place}/variables; echo 41')
    done = submit(place, *WORDS, "--gpus", "1", "--env", "MY_TOKEN=s3cret", "--env", "PLAIN=pl41n")
    assert done.returncode == 0, done.stderr
    kept = (place / ".local/state/aam/jobs/41.sh").read_text()
    assert "--env=MY_TOKEN" in kept or "--env MY_TOKEN" in kept
    written = [path for path in place.rglob("*") if path.is_file() and path.suffix != ".sif"]
    for value in ("s3cret", "pl41n"):
        holds = [path.name for path in written if value in path.read_text(errors="replace")]
        assert holds == ["variables"]  # what sbatch was given, and hands to the job
    assert "AAM_JOB_ENV_MY_TOKEN" in (place / "variables").read_text()


def test_a_rank_on_a_shared_node_gets_the_processors_of_its_gpu(place: Path) -> None:
    with (place / "site.yaml").open("a") as stream:
        stream.write("cpus_per_node: 48\ngpu_request: '--gpus-per-node={gpus}'\n")
    words = (*WORDS, "--gpus", "2", "--time", "2:00:00")
    shared = header(script_of(place, *words))
    assert {"--cpus-per-task=12", "--gpus-per-node=2"} <= set(shared)
    assert not {"--exclusive", "--mem=0"} & set(shared)
    chosen = header(script_of(place, *words, "--cpus", "3", "--mem", "20G"))
    assert {"--cpus-per-task=3", "--mem=20G"} <= set(chosen)
    with (place / "site.yaml").open("a") as stream:
        stream.write("whole_nodes: true\n")
    alone = header(script_of(place, *words))
    assert {"--exclusive", "--mem=0"} <= set(alone)
    assert not [option for option in alone if option.startswith("--cpus-per-task")]


def test_a_job_on_processors_takes_those_of_a_node(place: Path) -> None:
    """Slurm's default is one processor, however many the node has."""
    slurm_and_image(place, "echo 41")
    sinfo(place, "gpu*|12:00:00|8|4|1-infinite|(null)")
    (place / "site.yaml").write_text("title: processors\nruntime: native\n")
    assert "--cpus-per-task=8" in header(script_of(place, *WORDS, "--device", "cpu"))


def sinfo(place: Path, *lines: str) -> None:
    program(place / "bin/sinfo", *(f"echo '{line}'" for line in lines))


@pytest.fixture
def unknown(place: Path) -> Path:
    """A cluster whose site states no GPUs; return the folder of its images."""
    (place / "site.yaml").write_text("title: unknown\nruntime: apptainer\n")
    return slurm_and_image(place, "echo 41").parent


def test_a_time_that_the_partition_never_gives(place: Path) -> None:
    slurm_and_image(place, "echo 41")
    sinfo(place, "gpu*|4:00:00|8|4|1-infinite|(null)", "long|infinite|8+|4|1-2|(null)")
    done = submit(place, *WORDS, "--gpus", "1", "--time", "5:00:00")
    assert (done.returncode, done.stdout) == (64, "")
    assert ("More time than the partition allows: --time 5:00:00, partition gpu gives 4:00:00"
            in done.stderr)  # fmt: skip
    # One limit is stated, not that of the site too.
    done = submit(place, *WORDS, "--gpus", "1", "--time", "13:00:00")
    assert done.stderr.count("More time than") == 1
    done = submit(place, *WORDS, "--gpus", "1", "--time", "5:00:00", "--partition", "long")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("limit", ["UNLIMITED", "infinite"])
def test_a_site_without_a_limit_of_time(place: Path, limit: str) -> None:
    (place / "site.yaml").write_text(SITE.replace('"12:00:00"', limit))
    assert "--time=90-0" in header(script_of(place, *WORDS, "--gpus", "1", "--time", "90-0"))
    assert f"--time={limit}" in header(script_of(place, *WORDS, "--gpus", "1"))
    assert seconds(limit) == float("inf")


def test_a_job_in_an_image_for_the_processor_needs_no_gpu_of_its_nodes(place: Path) -> None:
    images = slurm_and_image(place, "echo 41").parent
    cpu = sif(images / "cpu.sif")
    index.write(images, "cpu", "sif", record_of(cpu))
    done = submit(place, *WORDS, "--gpus", "1", "--image", "cpu")
    assert done.returncode == 0, done.stderr
    words = job_words((place / ".local/state/aam/jobs/41.sh").read_text())
    assert "--device" not in words
    assert words[words.index("--digest") + 1].startswith("sha256:")


def test_the_site_of_an_administrator_gives_settings_without_being_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "sites").mkdir()
    (place / "sites/slurm.yaml").write_text("title: ours\nruntime: native\npartition: p\n")
    monkeypatch.setattr(config, "SITES", (place / "sites", *config.SITES))
    printed = script_of(place, *WORDS[2:], "--device", "cpu")
    assert "--partition=p" in header(printed)
    words = job_words(printed)
    assert words[words.index("--runtime") + 1] == "native"


def test_a_node_of_an_unknown_cluster_decides_by_its_gpus(place: Path, unknown: Path) -> None:
    """The job asks for GPUs, and the node takes the image that fits."""
    printed = script_of(place, *WORDS, "--gpus", "2")
    assert {"--gpus-per-node=2", "--ntasks-per-node=2"} <= set(header(printed))
    words = job_words(printed)
    assert not {"--image", "--digest"} & set(words)
    assert words[words.index("--device") + 1] == "cuda"
    # One that the user names runs there, whatever its GPUs are.
    index.write(unknown, "cuda128", "sif", record_of(sif(unknown / "cuda128.sif")))
    words = job_words(script_of(place, *WORDS, "--gpus", "2", "--image", "cuda128"))
    assert words[words.index("--image") + 1] == "cuda128"
    assert "--force" not in words
    refused = submit(place, *WORDS, "--gpus", "2")
    assert "Images of two vendors are built: for AMD and NVIDIA" in refused.stderr
    for built in unknown.glob("*.sif"):
        built.unlink()
    refused = submit(place, *WORDS, "--gpus", "2")
    assert (refused.returncode, refused.stdout) == (69, "")
    assert f"No image for GPUs is built: none in '{unknown}'" in refused.stderr


@pytest.mark.usefixtures("unknown")
def test_the_gpus_of_an_unknown_cluster_are_those_that_slurm_counts(place: Path) -> None:
    sinfo(place, "gpu*|1-0|40|2|1-9|gpu:v100:4(S:0-1)", "cpu|1-0|64|9|1-9|(null)")
    for number, more in (("4", ()), ("1", ("--gpus", "1"))):
        options = {f"--gpus-per-node={number}", f"--ntasks-per-node={number}", "--cpus-per-task=10"}
        assert options <= set(header(script_of(place, *WORDS, *more)))
    own = script_of(place, *WORDS, "--gpus", "1", "--sbatch", "gres=gpu:v100:1")
    assert "--gres=gpu:v100:1" in header(own)
    for more in (("--device", "cpu"), ("--image", "cpu"), ("--partition", "cpu", "--gpus", "2")):
        done = submit(place, *WORDS, *more, "--dry-run")
        assert not [option for option in header(done.stdout) if option.startswith("--gpus")], more
        assert ("The job requests no GPU" in done.stderr) == ("--partition" in more), done.stderr
    # Two ranks on processors divide a node; Slurm never starts a job that wants more of them.
    assert "--cpus-per-task=32" in header(done.stdout)


def test_inputs_are_staged_on_request(place: Path) -> None:
    words = job_words(script_of(place, *WORDS, "--gpus", "1", "--stage", "7"))
    assert words[4:6] == ["--stage", "7"]
    assert "--stage" not in job_words(script_of(place, *WORDS, "--gpus", "1"))


def test_sbatch_passes_what_has_no_option(place: Path) -> None:
    more = ("--sbatch", "qos=high", "--sbatch", "reservation=tpx", "--sbatch", "nice")
    options = header(script_of(place, *WORDS, "--gpus", "1", *more))
    assert options[-3:] == ["--qos=high", "--reservation=tpx", "--nice"]


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


@pytest.mark.skipif(SHELLCHECK is None and "CI" not in os.environ, reason="no shellcheck")
@pytest.mark.parametrize(
    "more", [(), ("--image", "rocm62"), ("--runtime", "native", "--device", "cpu")]
)
def test_scripts_are_clean(place: Path, more: tuple[str, ...]) -> None:
    text = script_of(place, *WORDS, "--gpus", "1", "--force", *more)
    assert SHELLCHECK is not None
    argv = [SHELLCHECK, "--exclude=SC1091", "-"]  # /etc/profile is not followed
    checked = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_of_two_submissions_at_once_one_gets_the_output(tmp_path: Path) -> None:
    """The queue is listed under the lock, when no other submission can add a job to it."""

    def queue_of_another() -> dict[str, queue.Queued]:
        with (
            pytest.raises(CannotCreate, match="belongs to another submission"),
            reserved(tmp_path, True, dict),
        ):
            pytest.fail("two submissions have one output")
        return {"41": queue.Queued("41", "PENDING", "", "")}

    (tmp_path / ".aam-job").write_text("41\n")
    with (
        pytest.raises(CannotCreate, match=r"belongs to job 41 \(PENDING\)"),
        reserved(tmp_path, True, queue_of_another),
    ):
        pytest.fail("the output of a job is given to another one")


def test_a_submission_needs_no_file_locks(place: Path) -> None:
    slurm_and_image(place, "echo 41")
    done = submit(place, *WORDS, "--gpus", "1", LD_PRELOAD=without_flock(place))
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["Job", "41:"]), done.stderr
    assert (place / "out/.aam-job").read_text() == "41\n"


def test_a_launcher_that_the_nodes_may_not_see_is_a_warning(place: Path) -> None:
    with (place / "site.yaml").open("a") as site:
        site.write(f"shared: ['{place}']\n")
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "The nodes may not see" in line)
    assert f"the launcher: '{sys.executable}' is not below {place}" in line


def test_the_log_of_a_path_with_a_percent_sign(place: Path) -> None:
    slurm_and_image(place, "echo 41")
    done = submit(place, *WORDS[:-1], "100%job a", "--gpus", "1")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("follow"))
    assert shlex.split(line) == ["follow", "tail", "-F", f"{place}/100%job a-41.log"]


@pytest.mark.parametrize("args", [["--nodes=2", "a", "--time", "5"], ["a", "--nodes", "2"]])
def test_options_of_the_job_stand_anywhere(args: list[str]) -> None:
    found, rest = parse_known(specs(SubmitOptions), args)
    assert rest == ["a"]
    assert found["--nodes"] == 2


def test_names_with_spaces_and_quotes(place: Path) -> None:
    odd = place / 'it\'s a "run" 100%'
    text = script_of(place, *WORDS[:-1], str(odd), "--gpus", "1", "--job-name", 'my "job" \\1')
    assert '#SBATCH "--job-name=my \\"job\\" \\\\1"' in text
    assert f'#SBATCH "--output={place}/it\'s a \\"run\\" 100%%-%j.log"' in text
    assert str(odd) in job_words(text)
    options = script.directives(text)
    assert options["job-name"] == 'my "job" \\1'
    assert script.log_file(options["output"], "7") == f"{odd}-7.log"


WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(WORD, max_size=30))
def test_any_word_arrives_as_it_was_written(words: list[str]) -> None:
    line = script.wrapped(["printf", "%s\\0", *words])
    shown = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert shown.stdout.decode().split("\0")[:-1] == (words or [""])


def test_no_text_of_a_site_enters_the_script(place: Path) -> None:
    with (place / "site.yaml").open("a") as site:
        site.write("plugin: ['/a,destination=/etc']\nscratch: '${A-$(touch made)}'\n")
        site.write("interfaces: ['hsn* $(touch made)']\nnetwork: {A: '1\\ntouch made'}\n")
    text = script_of(place, *WORDS, "--gpus", "1", "--env", "A=$(touch made)")
    assert "made" not in text
    assert "destination" not in text


def test_one_process_commands_take_one_gpu(place: Path) -> None:
    args = ["--site", "./site.yaml", "unifrac", "--table", "table.biom", "--tree", "tree.nwk",
            "--output", "d.npy"]  # fmt: skip
    done = submit(place, *args, "--nodes", "2")
    assert done.returncode == 64
    assert "`unifrac` runs in one process: --nodes 2" in done.stderr
    text = script_of(place, *args)
    assert "#SBATCH --signal" not in text
    assert "--no-requeue" in text
    assert submit(place, "explain").returncode == 64


TRAIN = ("--site", "./site.yaml", "--dry-run", "train", "--table", "table.biom", "--metadata",
         "m.tsv", "--metadata-column", "age", "--output-dir", "out")  # fmt: skip


def test_a_job_without_the_network_leaves_the_gpus_to_others(place: Path) -> None:
    with (place / "site.yaml").open("a") as stream:
        stream.write("whole_nodes: yes\ncpus_per_node: 192\nmemory_gb: 512\n"
                     "gpu_request: '--gpus-per-node={gpus}'\n")  # fmt: skip
    done = submit(place, *TRAIN)
    assert done.returncode == 0, done.stderr
    options = header(done.stdout)
    assert {"--cpus-per-task=48", "--mem=128G", "--partition=gpu"} <= set(options)
    assert not [o for o in options if "gpus" in o or o == "--exclusive"]
    assert "# device: the CPU; GPUs not used: kernel and forest run on the CPU" in done.stdout
    says = (
        "GPUs not used: kernel and forest run on the CPU, and a job gets nodes with 4 x GPU whole"
    )
    assert f"warning: {says}; `pretrain`, and" in done.stderr
    with (place / "site.yaml").open("a") as stream:
        stream.write("cpu_partition: cores\n")
    elsewhere = submit(place, *TRAIN)
    assert "--partition=cores" in header(elsewhere.stdout)
    assert "GPUs not used" not in elsewhere.stderr
    network = submit(place, *TRAIN, "--members", "transformer")
    assert {"--exclusive", "--partition=gpu", "--gpus-per-node=4"} <= set(header(network.stdout))
    assert "GPUs not used" not in network.stderr + network.stdout


def test_a_partition_without_gpus_is_named_where_slurm_has_one(place: Path) -> None:
    (place / "site.yaml").write_text("title: unknown\nruntime: native\n")
    slurm_and_image(place, "echo 41")
    sinfo(place, "gpu*|1-0|40|2|1-9|gpu:v100:4", "cores|1-0|64|9|1-9|(null)")
    done = submit(place, *TRAIN)
    assert "the nodes of the partition have GPUs; --partition cores has none" in done.stderr
    assert "GPUs not used" not in submit(place, *TRAIN, "--partition", "cores").stderr


@pytest.mark.usefixtures("unknown")
def test_gpus_are_requested_where_a_part_of_the_nodes_has_some(place: Path) -> None:
    sinfo(place, "all*|1-0|32|9|1-9|(null)", "all*|1-0|64|2|1-9|gpu:a100:4",
          "all*|1-0|128|2|1-9|gpu:h100:8")  # fmt: skip
    for number in ("4", "8"):
        options = header(script_of(place, *WORDS, "--gpus", number))
        assert {f"--gpus-per-node={number}", "--cpus-per-task=16"} <= set(options)
    assert "--gpus-per-node=4" in header(script_of(place, *WORDS))


@pytest.mark.usefixtures("unknown")
def test_two_types_of_gpus_in_a_node_are_chosen_from(place: Path) -> None:
    sinfo(place, "gpu*|1-0|48|2|1-9|gpu:a100:4(S:0),gpu:v100:2(S:1)")
    refused = submit(place, *WORDS, "--dry-run")
    says = (
        "Nodes with GPUs of several types: 4 x a100, 2 x v100; choose with --sbatch gres=gpu:a100:4"
    )
    assert (refused.returncode, says in refused.stderr) == (64, True), refused.stderr
    own = script_of(place, *WORDS, "--sbatch", "gres=gpu:v100:2")
    assert {"--ntasks-per-node=2", "--gres=gpu:v100:2"} <= set(header(own))
    twice = submit(place, *WORDS, "--gpus", "4", "--sbatch", "gres=gpu:v100:2", "--dry-run")
    assert (twice.returncode, "Two numbers of GPUs" in twice.stderr) == (64, True)


def test_training_takes_the_gpus_of_a_node_for_the_network_alone(place: Path) -> None:
    text = script_of(place, *TRAIN)
    assert "#SBATCH --ntasks-per-node=1\n" in text
    assert f"# image: cpu by apptainer, '{place}/images/cpu.sif'\n# device: the CPU" in text
    refused = submit(place, *TRAIN, "--gpus", "4")
    assert refused.returncode == 64
    assert (
        "`train` without the transformer runs in one process: --nodes 1 --gpus 4" in refused.stderr
    )
    network = script_of(place, *TRAIN, "--members", "transformer")
    assert "#SBATCH --ntasks-per-node=4\n" in network
    assert f"# image: rocm64 by apptainer, '{place}/images/rocm64.sif'" in network


def test_a_job_stops_before_its_limit(place: Path) -> None:
    """A short one trains for three quarters of it: Slurm would send the signal at once."""
    one = (*WORDS, "--gpus", "1")
    for time, signal in (("10", 150), ("12:00:00", 600), ("1:00:00", 600), ("1:00", 15)):
        assert f"--signal=B:USR1@{signal}" in header(script_of(place, *one, "--time", time))
    ends = header(script_of(place, *one, "--no-requeue"))
    assert not [option for option in ends if option.startswith("--signal")]
    ends = header(script_of(place, *one, "--no-requeue", "--warn-seconds", "60"))
    assert {"--signal=B:USR2@60", "--no-requeue"} <= set(ends)


def test_a_node_that_is_down_delays_a_job(place: Path) -> None:
    """`sbatch --test-only` refuses what sbatch queues."""
    refuses = "echo 'allocation failure: Requested node configuration is not available' >&2; exit 1"
    slurm_and_image(place, f'case " $* " in *--test-only*) {refuses};; esac\necho 41')
    done = submit(place, *WORDS, "--gpus", "1")
    assert done.returncode == 0, done.stderr
    assert "Job 41: aam pretrain" in done.stdout
    assert "warning: The nodes are not there now: " in done.stderr
    assert "the job is queued; it never starts if no node has so much" in done.stderr


@pytest.mark.parametrize(
    "printed", ["Submitted batch job 77 on cluster x", "Submitted batch job 77", "77;x",
                "Welcome to 4 nodes\n  77"],
)  # fmt: skip
def test_the_number_of_a_job_is_read_from_what_a_wrapper_prints(place: Path, printed: str) -> None:
    slurm_and_image(place, f"printf '%s\\n' '{printed}'")
    done = submit(place, *WORDS, "--gpus", "1")
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["Job", "77:"]), done.stderr
    assert (place / "out/.aam-job").read_text() == "77\n"
    assert (place / ".local/state/aam/jobs/77.sh").exists()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("echo thank you", "sbatch printed no job number: 'thank you'; see `squeue --me`"),
        *((f"printf '{text}'", "sbatch printed no job number: ")
          for text in ("", "../../pwned", "12\\n13", "9" * 30)),
        ("echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1",
         "Slurm did not respond in time"),
    ],
)  # fmt: skip
def test_a_job_that_may_be_queued_is_not_queued_twice(
    place: Path, answer: str, sentence: str
) -> None:
    count = f'case " $* " in *--test-only*) exit 0;; esac; echo x >>{place}/queued'
    slurm_and_image(place, f"{count}; {answer}")
    first, second = (submit(place, *WORDS, "--gpus", "1") for _ in range(2))
    assert (first.returncode, sentence in first.stderr) == (69, True), first.stderr
    assert (first.stdout, first.stderr.count("\n")) == ("", 1)
    assert not (place / ".local/state/aam").exists()
    assert second.returncode == 73
    assert "belongs to a job without a number from Slurm" in second.stderr
    assert f"remove '{place}/out/.aam-job'" in second.stderr
    assert (place / "queued").read_text() == "x\n"
    (place / "out/.aam-job").unlink()
    # Where sbatch was to check the script alone, nothing can be queued.
    slurm_and_image(place, "echo 'Socket timed out' >&2; exit 1")
    checked = submit(place, *WORDS, "--gpus", "1")
    assert (checked.returncode, "try again later" in checked.stderr) == (69, True)
    slurm_and_image(place, "echo 78")
    assert submit(place, *WORDS, "--gpus", "1").returncode == 0


# --- the trials of a search

SEARCH = ("--site", "./site.yaml", "search", "--table", "table.biom", "--metadata", "m.tsv",
          "--metadata-column", "age", "--output-dir", "out")  # fmt: skip


def test_jobs_share_the_trials_of_a_search_and_a_further_one_evaluates(place: Path) -> None:
    first, second = script_of(place, *SEARCH, "--jobs", "8").split("#!/bin/bash\n")[1:]
    assert {"--ntasks-per-node=1", "--requeue"} <= set(header(first))  # of a site with four GPUs
    assert job_words(first)[-3:] == ["--output-dir", f"{place}/out", "--trials-only"]
    assert "--trials-only" not in second
    counts = 'echo "$@" >>options; cat >/dev/null; n=$(wc -l <options); echo $((40 + n))'
    slurm_and_image(place, counts)
    for name in ("cat", "wc"):
        (place / "bin" / name).symlink_to(f"/usr/bin/{name}")
    done = submit(place, *SEARCH, "--jobs", "3")
    assert done.returncode == 0, done.stderr
    assert (place / "options").read_text().splitlines() == [
        "--test-only", "--test-only", "--parsable", "--parsable", "--parsable",
        "--parsable --dependency=afterok:43:44:45 --kill-on-invalid-dep=yes",
    ]  # fmt: skip
    assert "stop     aam-launch jobs cancel 43 44 45 46" in done.stdout


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((*SEARCH, "--gpus", "2"), "`search` runs in one process: --nodes 1 --gpus 2; leave"),
        ((*SEARCH, "--storage", "sqlite:///s.db"), "no other SQLite database: --storage sqlite"),
        ((*WORDS, "--jobs", "2"), "--jobs is for `search` alone: `pretrain`"),
    ],
)
def test_jobs_of_a_search_are_refused(place: Path, args: tuple[str, ...], sentence: str) -> None:
    done = submit(place, *args, "--dry-run")
    assert done.returncode == 64
    assert sentence in done.stderr
