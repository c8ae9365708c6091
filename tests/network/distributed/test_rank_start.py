"""Environment of ranks, checks at the start, and ranks that `aam` starts itself."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aam.contract.errors import DataError, UsageError
from aam.contract.options import values_of
from aam.contract.options.commands.train import Pretrain
from aam.contract.options.groups import ScaleOptions
from aam.environment import Ranks, check_options, read_environment
from aam.network.distributed import process_group
from aam.network.distributed.collectives import Communicator
from aam.pipeline import run_folder
from tests.support.commands import TINY
from tests.support.local_ranks import NEEDS_FSDP, start, together

DDP = ScaleOptions(distributed=True, rank_timeout=2)

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "n1", "MASTER_PORT": "2950"}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77",
    "SLURM_STEP_TASKS_PER_NODE": "4,2", "SLURM_NODEID": "1", "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}  # fmt: skip


def test_the_variables_of_torchrun_give_the_rank() -> None:
    assert read_environment(TORCHRUN) == Ranks(5, 8, 1, 4, "n1", 2950, "torchrun")


def test_the_variables_of_srun_give_the_rank_and_a_batch_script_is_one_process() -> None:
    ranks = read_environment(SRUN)
    assert (ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_world_size) == (5, 6, 1, 2)
    assert ranks.main_address == "gpu07"
    for nodes, first in (("gpu[03-05,9],login1", "gpu03"), ("n1-[007]-ib,n2", "n1-007-ib")):
        assert read_environment(SRUN | {"SLURM_STEP_NODELIST": nodes}).main_address == first
    main = read_environment(SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    assert ranks.main_port == main.main_port
    assert ranks.main_port != read_environment(SRUN | {"SLURM_JOB_ID": "78"}).main_port
    batch = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "6", "SLURM_PROCID": "0"}
    assert read_environment(batch) == Ranks()
    assert read_environment({}) == Ranks()


@pytest.mark.parametrize(
    ("variables", "evidence"),
    [
        (TORCHRUN | {"RANK": "8"}, "rank 8 of 8"),
        ({name: TORCHRUN[name] for name in TORCHRUN if name != "MASTER_PORT"}, "MASTER_PORT is no"),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "six"}, "SLURM_STEP_NUM_TASKS='six'"),
        (SRUN | {"SLURM_NODEID": "2"}, "SLURM_NODEID=2, tasks on 2 nodes"),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x"}, re.escape("'4(x'")),
    ],
)
def test_wrong_variables_are_refused(variables: dict[str, str], evidence: str) -> None:
    with pytest.raises(UsageError, match=evidence):
        read_environment(variables)


@pytest.mark.parametrize(
    ("scale", "size", "batch", "cause"),
    [
        (ScaleOptions(), 2, 8, "would all do the same"),
        (ScaleOptions(distributed=True), 4, 3, "Fewer samples in a batch than processes"),
    ],
)
def test_contradictory_options_are_refused(
    scale: ScaleOptions, size: int, batch: int, cause: str
) -> None:
    with pytest.raises(UsageError, match=cause):
        check_options(scale, Ranks(0, size, 0, size, launcher="torchrun"), batch)


def test_an_interface_that_does_not_exist_is_refused() -> None:
    existing = ("hsn0", "hsn1", "lo")
    for right in ("hsn", "=hsn1", "^lo", "hsn0,eth9", ""):
        process_group.check_interfaces({"NCCL_SOCKET_IFNAME": right}, existing)
    for wrong in ("ib0", "=hsn", "ib0,ib1"):
        with pytest.raises(UsageError, match="this node has hsn0, hsn1, lo"):
            process_group.check_interfaces({"NCCL_SOCKET_IFNAME": wrong}, existing)
    with pytest.raises(UsageError, match="GLOO_SOCKET_IFNAME=hsn;"):
        process_group.check_interfaces({"GLOO_SOCKET_IFNAME": "hsn"}, existing)


def test_network_settings_and_plugin_are_described() -> None:
    settings = {"NCCL_SOCKET_IFNAME": "hsn0", "FI_PROVIDER": "cxi", "HOME": "/root"}
    for plugin, where in (("none-such", "not found; traffic goes over sockets"),
                          ("libm.so.6", "found")):  # fmt: skip
        variables = settings | {"NCCL_NET_PLUGIN": plugin}
        first, second = process_group.describe_network(variables, "cuda", ["hsn0"])
        shown = f"FI_PROVIDER=cxi, NCCL_NET_PLUGIN={plugin}, NCCL_SOCKET_IFNAME=hsn0;"
        assert first == f"Network: {shown} this node has hsn0."
        assert second == f"Network plugin '{plugin}': {where}."


# What is compared at the start


def options(study_dir: Path, folder: Path, lr: float) -> Pretrain:
    from tests.support.parsing import built

    args = ("--table", study_dir / "table.biom", "--output-dir", folder, *TINY)
    made: Pretrain = built("pretrain", [str(word) for word in args])
    return dataclasses.replace(made, loop=dataclasses.replace(made.loop, lr=lr))


def differ(communicator: Communicator, study_dir: Path, what: str) -> None:
    mine = communicator.ranks.rank == 1
    if what == "options":
        communicator.require_equal_options(
            values_of(options(study_dir, study_dir / "out", 0.01 if mine else 0.001))
        )
    else:
        communicator.require_equal_data(study={"reads": [1, 2, 3 + mine]}, split=(0, 1))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("what", "status", "evidence"),
    [
        ("options", UsageError.status, "--lr 0.01 instead of 0.001"),
        ("data", DataError.status, "study"),
    ],
)
def test_ranks_with_other_options_or_data_are_refused(
    study_dir: Path, what: str, status: int, evidence: str
) -> None:
    for found, sentence in together(2, DDP, differ, study_dir, what):
        assert found == status
        assert "Rank 1 differs from rank 0" in sentence
        assert evidence in sentence


def fail_alone(communicator: Communicator) -> None:
    if communicator.ranks.rank == 1:
        raise DataError("No such column", "'age'")
    communicator.any_rank(False)


@pytest.mark.medium
def test_an_error_of_one_rank_ends_the_others_with_its_message() -> None:
    found = start(2, DDP, fail_alone).results()
    assert found[1] == (DataError.status, "No such column: 'age'.")
    assert found[0][0] == 70
    assert "Rank 1 stopped: No such column: 'age'" in found[0][1]


def begin_late(communicator: Communicator, study_dir: Path, folder: Path) -> bool:
    if communicator.ranks.rank == 1:
        until = time.monotonic() + 2
        while not (folder / "run.json").exists() and time.monotonic() < until:
            time.sleep(0.02)
    prepared = run_folder.prepare("pretrain", options(study_dir, folder, 0.01), communicator)
    with run_folder.begin(prepared, communicator):
        communicator.barrier()
        return (folder / "run.json").exists()


@pytest.mark.medium
def test_a_run_begins_when_every_rank_has_checked_the_folder(
    study_dir: Path, tmp_path: Path
) -> None:
    assert together(2, DDP, begin_late, study_dir, tmp_path / "run") == [True, True]


# The command line


@NEEDS_FSDP
@pytest.mark.slow
def test_aam_starts_processes_and_ends_with_their_status(study_dir: Path, tmp_path: Path) -> None:
    args = ["pretrain", *TINY, "--table", study_dir / "table.biom", "--output-dir", tmp_path,
            "--tree", study_dir / "tree.nwk", "--epochs", 400, "--processes", 2, "--fsdp",
            "--resume-from", "auto", "--checkpoint-every-n-steps", 1]  # fmt: skip
    line = [sys.executable, "-m", "aam.cli", *map(str, args)]
    run = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not (tmp_path / "checkpoints/last.ckpt").exists():
        assert run.poll() is None
        assert time.monotonic() < until
        time.sleep(0.2)
    run.send_signal(signal.SIGUSR1)
    _, printed = run.communicate(timeout=120)
    assert run.returncode == 75, printed
    assert "2 processes (FSDP), cpu, batches of 8 samples: 4 each." in printed
    assert "Nothing to resume from; starting." in printed
    assert "continue with --resume-from auto" in printed


@pytest.mark.slow
def test_modules_of_the_current_folder_are_not_imported(study_dir: Path, tmp_path: Path) -> None:
    for name in ("json", "difflib", "torch", "argparse", "aam"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from here')")
    args = ["pretrain", *TINY, "--table", study_dir / "table.biom", "--output-dir", "run",
            "--tree", study_dir / "tree.nwk", "--processes", 2, "--distributed"]  # fmt: skip
    path = [entry for entry in sys.path if entry] + [str(Path(__file__).parents[3])]
    start = f"import sys; sys.path[:] = {path!r}; from aam.cli import main; sys.exit(main())"
    line = [sys.executable, "-c", start, *map(str, args)]
    run = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "run/checkpoints/best.ckpt").exists()


@pytest.mark.medium
def test_a_name_that_cannot_be_resolved_is_refused_at_once(study_dir: Path, tmp_path: Path) -> None:
    args = ["pretrain", *TINY, "--table", study_dir / "table.biom", "--penalty", "0",
            "--output-dir", tmp_path / "run", "--distributed"]  # fmt: skip
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "no-such-node.invalid", "MASTER_PORT": "2950"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "aam.cli", *map(str, args)],
        env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 69
    assert "name of the first rank's node cannot be resolved: 'no-such-node.invalid'" in done.stderr
    assert "set MASTER_ADDR" in done.stderr
