"""Checkpoints of all strategies, stop requests, and failed ranks."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.contract.errors import Interrupted
from aam.contract.options.groups import LoopOptions, ScaleOptions
from aam.network.distributed.collectives import Communicator
from aam.network.training import checkpoints
from aam.pipeline import run_folder
from tests.support.local_ranks import NEEDS_FSDP, together
from tests.support.rank_steps import Case, alone, learn, learn_all

pytestmark = pytest.mark.medium

ALONE = ScaleOptions()
DDP = ScaleOptions(distributed=True, rank_timeout=5)
FSDP = ScaleOptions(fsdp=True, rank_timeout=5)

SHORT = Case(loop=LoopOptions(epochs=2, batch_size=6, lr=1e-2, seed=1), every=1)
STATUS = 75


@pytest.fixture(scope="module")
def whole(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Weights of a run of one process that never stopped."""
    return alone(study_dir, tmp_path_factory.mktemp("whole"), SHORT)["weights"]


@pytest.fixture(scope="module")
def halves(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that stopped at step 5, one of each kind: alone, 0 (DDP), 1 (FSDP)."""
    folder = tmp_path_factory.mktemp("halves")
    half = dataclasses.replace(SHORT, stop=5)
    alone(study_dir, folder / "alone", half)
    cases = [dataclasses.replace(half, scale=scale) for scale in (DDP, FSDP)]
    together(2, DDP, learn_all, study_dir, folder, cases)
    return folder


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9, msg=name)


@NEEDS_FSDP
def test_any_checkpoint_resumes_on_any_strategy(
    study_dir: Path, tmp_path: Path, halves: Path, whole: dict[str, torch.Tensor]
) -> None:
    writers = ("alone", "0", "1")
    cases = [
        dataclasses.replace(SHORT, scale=scale, resume=halves / writer)
        for writer in writers
        for scale in (DDP, FSDP)
    ]
    results = together(2, DDP, learn_all, study_dir, tmp_path, cases)[0]
    assert isinstance(results, list), results
    for found in results:
        same(found["weights"], whole)
    for writer in writers:
        resumed = dataclasses.replace(SHORT, resume=halves / writer)
        same(alone(study_dir, tmp_path / writer, resumed)["weights"], whole)
    resumed = dataclasses.replace(SHORT, scale=FSDP, resume=halves / "1")
    [found, *_] = together(4, FSDP, learn, study_dir, tmp_path / "four", resumed)
    same(found["weights"], whole)


@pytest.mark.parametrize(
    ("scale", "number"),
    [
        pytest.param(DDP, signal.SIGUSR1, id="ddp"),
        pytest.param(FSDP, signal.SIGTERM, id="fsdp", marks=NEEDS_FSDP),
    ],
)
def test_a_signal_to_one_rank_stops_all_at_the_same_step(
    study_dir: Path,
    tmp_path: Path,
    whole: dict[str, torch.Tensor],
    scale: ScaleOptions,
    number: signal.Signals,
) -> None:
    case = dataclasses.replace(SHORT, scale=scale, every=0, signal=(1, 2, int(number)))
    found = together(2, scale, learn, study_dir, tmp_path, case)
    for status, sentence in found:
        assert status == STATUS
        assert "Stopped at step 3" in sentence
        assert "--resume-from auto" in sentence
    assert number.name in found[1][1]
    resume = checkpoints.read(tmp_path / "checkpoints/last.ckpt").resume
    assert resume is not None and resume.progress.step == 3
    rest = dataclasses.replace(SHORT, scale=scale, resume="auto")
    same(together(2, scale, learn, study_dir, tmp_path, rest)[0]["weights"], whole)


def test_a_stop_request_in_the_last_step_of_an_epoch_waits_for_its_validation(
    study_dir: Path, tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    """Four steps an epoch: the signal comes in the fourth, and then in the eighth, the last."""
    case = dataclasses.replace(SHORT, scale=DDP, signal=(1, 3, int(signal.SIGUSR1)))
    for status, sentence in together(2, DDP, learn, study_dir, tmp_path, case):
        assert status == STATUS
        assert "Stopped at step 4" in sentence
    assert epochs(tmp_path) == [0]
    rest = dataclasses.replace(SHORT, resume="auto", signal=(0, 7, int(signal.SIGUSR1)))
    with pytest.raises(Interrupted, match="Stopped at step 8"):
        alone(study_dir, tmp_path, rest)
    assert epochs(tmp_path) == [0, 1]
    again = dataclasses.replace(SHORT, resume="auto")
    same(alone(study_dir, tmp_path, again)["weights"], whole)
    assert epochs(tmp_path) == [0, 1]


def test_a_checkpoint_within_an_epoch_is_not_its_end(
    study_dir: Path, tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    """Killed in the validation of the first epoch: it resumes at the third step and validates."""
    alone(study_dir, tmp_path, dataclasses.replace(SHORT, killed=True))
    resume = checkpoints.read(tmp_path / "checkpoints/last.ckpt").resume
    assert resume is not None and resume.progress.step == 3
    same(alone(study_dir, tmp_path, dataclasses.replace(SHORT, resume="auto"))["weights"], whole)
    assert epochs(tmp_path) == [0, 1]


def epochs(folder: Path) -> list[int]:
    """Return the epochs that metrics.csv has a row of."""
    lines = (folder / "metrics.csv").read_text().splitlines()[1:]
    return [int(line.split(",")[0]) for line in lines]


@pytest.mark.parametrize(
    "scale", [pytest.param(DDP, marks=pytest.mark.nightly), pytest.param(FSDP, marks=NEEDS_FSDP)]
)
def test_a_killed_rank_ends_the_others_is_named_and_loses_nothing(
    study_dir: Path, tmp_path: Path, whole: dict[str, torch.Tensor], scale: ScaleOptions
) -> None:
    case = dataclasses.replace(SHORT, scale=scale, signal=(1, 3, int(signal.SIGKILL)))
    found = together(3, scale, learn, study_dir, tmp_path, case)
    assert found[1][0] == -signal.SIGKILL
    for status, sentence in (found[0], found[2]):
        assert status == 70
        assert "Rank 1 sent no heartbeat" in sentence
        assert "its last step was" in sentence
    same(alone(study_dir, tmp_path, dataclasses.replace(SHORT, resume="auto"))["weights"], whole)


def test_the_others_end_when_rank_0_is_killed(study_dir: Path, tmp_path: Path) -> None:
    case = dataclasses.replace(SHORT, scale=DDP, signal=(0, 3, int(signal.SIGKILL)))
    found = together(2, DDP, learn, study_dir, tmp_path, case)
    assert found[0][0] == -signal.SIGKILL
    assert found[1][0] == 70
    assert "Rank 0 cannot be reached" in found[1][1]


def learn_with_a_stale_view(
    communicator: Communicator, study_dir: Path, folder: Path, case: Case
) -> Any:
    """Resume where the file system shows no checkpoint to the second rank, as NFS may."""
    if communicator.ranks.rank == 1:
        run_folder.checkpoint_to_resume = lambda run, folder: None
    return learn(communicator, study_dir, folder, case)


def test_the_first_rank_decides_whether_a_run_resumes(
    study_dir: Path, halves: Path, tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    case = dataclasses.replace(SHORT, scale=DDP, resume=halves / "alone")
    found = together(2, DDP, learn_with_a_stale_view, study_dir, tmp_path, case)
    same(found[0]["weights"], whole)
