"""Checkpoints of all strategies, stop requests, and failed ranks."""

from __future__ import annotations

import dataclasses
import pickle
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.contract.errors import DataError, MissingInput
from aam.contract.files import sha256
from aam.contract.options.device import ScaleOptions
from aam.contract.options.training import LoopOptions
from aam.distributed import sharded_checkpoint
from aam.serialization import archive
from aam.training.inference.training_summary import TrainingSummary
from aam.training.run_files import checkpoints
from tests.support.commands import aam
from tests.support.local_ranks import NEEDS_FSDP, start, together
from tests.support.rank_steps import Case, alone, learn, learn_all

pytestmark = pytest.mark.medium

ALONE = ScaleOptions()
DDP = ScaleOptions(distributed=True, rank_timeout=5)
FSDP = ScaleOptions(fsdp=True, rank_timeout=5)
SHARDED = ScaleOptions(fsdp=True, fsdp_sharded_checkpoint=True, rank_timeout=5)

SHORT = Case(loop=LoopOptions(epochs=2, batch_size=6, lr=1e-2, seed=1), every=1)
STATUS = 75


@pytest.fixture(scope="module")
def whole(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Weights of a run of one process that never stopped."""
    return alone(study_dir, tmp_path_factory.mktemp("whole"), SHORT)["weights"]


@pytest.fixture(scope="module")
def halves(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that stopped at step 5, one of each kind: alone, 0 (DDP), 1 (FSDP), 2 (sharded)."""
    folder = tmp_path_factory.mktemp("halves")
    half = dataclasses.replace(SHORT, stop=5)
    alone(study_dir, folder / "alone", half)
    cases = [dataclasses.replace(half, scale=scale) for scale in (DDP, FSDP, SHARDED)]
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
    writers = ("alone", "0", "1", "2")
    assert (halves / "2/checkpoints/last.ckpt").is_dir()
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
    resumed = dataclasses.replace(SHORT, scale=SHARDED, resume=halves / "2")
    [found, *_] = together(4, SHARDED, learn, study_dir, tmp_path / "four", resumed)
    same(found["weights"], whole)


@NEEDS_FSDP
def test_a_file_replaces_a_sharded_checkpoint(
    study_dir: Path, tmp_path: Path, halves: Path, whole: dict[str, torch.Tensor]
) -> None:
    shutil.copytree(halves / "2", tmp_path / "run", symlinks=True)
    resumed = dataclasses.replace(SHORT, resume="auto")
    same(alone(study_dir, tmp_path / "run", resumed)["weights"], whole)
    folder = tmp_path / "run/checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["best.ckpt", "last.ckpt"]
    assert all(path.is_file() and not path.is_symlink() for path in folder.iterdir())


@NEEDS_FSDP
def test_a_sharded_checkpoint_is_used_like_a_file(
    study_dir: Path, tmp_path: Path, halves: Path
) -> None:
    for kind, name in (("2", "sharded"), ("0", "file")):
        args = ("--table", study_dir / "table.biom", "--device", "cpu")
        assert aam("embed", *args, "--model", halves / kind / "checkpoints/last.ckpt",
                   "--output-dir", tmp_path / name) == 0  # fmt: skip
    texts = [(tmp_path / name / "embeddings.tsv").read_text() for name in ("sharded", "file")]
    assert texts[0] == texts[1]


@pytest.fixture
def shards(halves: Path, tmp_path: Path) -> Path:
    """A copy of a sharded checkpoint."""
    place = tmp_path / "last.ckpt"
    shutil.copytree((halves / "2/checkpoints/last.ckpt").resolve(), place)
    assert sharded_checkpoint.is_sharded(place)
    return place


def adapt_digest(shards: Path) -> None:
    """Write the digest of the changed index, as whoever changed it on purpose does."""
    rest = archive.read(shards / "rest.pt") | {"index": sha256(shards / ".metadata")}
    torch.save(rest, shards / "rest.pt")


@NEEDS_FSDP
def test_a_training_summary_is_added_to_shards(shards: Path) -> None:
    config, content = checkpoints.read(shards)
    assert content["training"] is None
    one = torch.ones(1, dtype=torch.int64)
    width = torch.zeros(1, config.shape.embedding_dim)
    summary = TrainingSummary(one, one, one, one, torch.zeros(2, 4), 9, one, width, 0.5)
    checkpoints.add_training_summary(shards, summary)
    again = checkpoints.read(shards)[1]
    assert again["training"].limit == 0.5
    same(again["state_dict"], content["state_dict"])


@NEEDS_FSDP
def test_shards_that_do_more_than_hold_tensors_are_refused(shards: Path) -> None:
    class Call:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    expected = sharded_checkpoint.read(shards)
    (shards / ".metadata").write_bytes(pickle.dumps(Call()))
    with pytest.raises(DataError, match="the SHA-256 of its .metadata"):
        checkpoints.read(shards)
    adapt_digest(shards)
    with pytest.raises(DataError, match=r"refers to 'builtins\.print'"):
        checkpoints.read(shards)
    assert expected["state_dict"]


@NEEDS_FSDP
def test_a_flipped_byte_of_shards_is_never_used(shards: Path) -> None:
    expected = checkpoints.read(shards)[1]
    rng = random.Random(5)
    refused = 0
    for file in sorted(shards.iterdir()):
        good = file.read_bytes()
        for place in rng.sample(range(len(good)), 20):
            changed = bytearray(good)
            changed[place] ^= 1 << rng.randrange(8)
            file.write_bytes(changed)
            try:
                found = checkpoints.read(shards)[1]
            except DataError:
                refused += 1
            else:
                assert file.suffix, "the index has a digest"
                weights = found["state_dict"]
                torch.testing.assert_close(weights, expected["state_dict"], rtol=0, atol=0)
        file.write_bytes(good)
    assert refused > 40


@NEEDS_FSDP
@pytest.mark.parametrize(
    ("name", "reason"),
    [("rest.pt", "rest.pt"), ("__0_0.distcp", "larger than"), ("__1_0.distcp", "larger than")],
)
def test_shards_of_which_a_file_is_missing(shards: Path, name: str, reason: str) -> None:
    (shards / name).unlink()
    with pytest.raises((DataError, MissingInput), match=reason):
        checkpoints.read(shards)


@pytest.mark.parametrize(
    ("scale", "number"),
    [
        pytest.param(DDP, signal.SIGUSR1, id="ddp"),
        pytest.param(SHARDED, signal.SIGTERM, id="fsdp", marks=NEEDS_FSDP),
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
    _, content = checkpoints.read(tmp_path / "checkpoints/last.ckpt")
    assert content["global_step"] == 3
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
    same(alone(study_dir, tmp_path, rest)["weights"], whole)
    assert epochs(tmp_path) == [0, 1]


def test_a_checkpoint_within_an_epoch_is_not_its_end(
    study_dir: Path, tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    """Killed in the validation of the first epoch: it resumes at the third step and validates."""
    alone(study_dir, tmp_path, dataclasses.replace(SHORT, killed=True))
    _, content = checkpoints.read(tmp_path / "checkpoints/last.ckpt")
    assert content["global_step"] == 3
    same(alone(study_dir, tmp_path, dataclasses.replace(SHORT, resume="auto"))["weights"], whole)
    assert epochs(tmp_path) == [0, 1]


def epochs(folder: Path) -> list[int]:
    """Return the epochs that metrics.csv has a row of."""
    lines = (folder / "metrics.csv").read_text().splitlines()[1:]
    return [int(line.split(",")[0]) for line in lines]


@pytest.mark.parametrize("scale", [DDP, pytest.param(FSDP, marks=NEEDS_FSDP)])
def test_a_killed_rank_ends_the_others_and_is_named(
    study_dir: Path, tmp_path: Path, scale: ScaleOptions
) -> None:
    case = dataclasses.replace(SHORT, scale=scale, signal=(1, 3, int(signal.SIGKILL)))
    found = together(3, scale, learn, study_dir, tmp_path, case)
    assert found[1][0] == -signal.SIGKILL
    for status, sentence in (found[0], found[2]):
        assert status == 70
        assert "Rank 1 sent no heartbeat" in sentence
        assert "its last step was" in sentence


def test_the_others_end_when_rank_0_is_killed(study_dir: Path, tmp_path: Path) -> None:
    case = dataclasses.replace(SHORT, scale=DDP, signal=(0, 3, int(signal.SIGKILL)))
    found = together(2, DDP, learn, study_dir, tmp_path, case)
    assert found[0][0] == -signal.SIGKILL
    assert found[1][0] == 70
    assert "Rank 0 cannot be reached" in found[1][1]


@pytest.mark.slow
@NEEDS_FSDP
def test_twenty_kills_lose_nothing(
    study_dir: Path, tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    chance, kills, runs = random.Random(20), 0, 0
    while kills < 20:
        folder = tmp_path / str(runs)
        runs += 1
        while True:
            scale = chance.choice([DDP, DDP, SHARDED])
            case = dataclasses.replace(SHORT, scale=scale, resume="auto")
            processes = start(2, scale, learn, study_dir, folder, case)
            if kills < 20:
                time.sleep(chance.uniform(0, 4))
                for rank in chance.choice([(0,), (1,), (0, 1)]):
                    processes.kill(rank)
                kills += 1
            found = processes.results()
            last = folder / "checkpoints/last.ckpt"
            if last.exists():
                checkpoints.read(last)
            if isinstance(found[0], dict):
                same(found[0]["weights"], whole)
                break
            # A rank may have finished before the other was killed.
            assert all(isinstance(one, dict) or one[0] in (-9, 70) for one in found), found
