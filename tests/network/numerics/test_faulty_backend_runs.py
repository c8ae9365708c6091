"""Replacement of faulty attention backends in real training runs, with emulated faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aam.contract.errors import Unavailable
from aam.contract.options.groups import DeviceOptions
from aam.network.inference.outputs import build_networks
from aam.network.inference.stored_networks import read_networks
from aam.network.model.attention import TORCH, Backend
from aam.network.numerics import probes
from aam.network.numerics.backends import BackendPolicy
from aam.network.training.runs import pretrain
from aam.pipeline.run import run as train
from tests.support import faulty_backends as emulated
from tests.support.commands import TINY, aam, read
from tests.support.faulty_backends import faulty
from tests.support.parsing import built

CPU = torch.device("cpu")
FAULTS: list[tuple[Callable[..., torch.Tensor], str, probes.KernelFault]] = [
    (emulated.aotriton_08, "none", probes.FIRST_MASK),
    (emulated.nan_empty, "none", probes.EMPTY),
    (emulated.gradient_off, "none", probes.SCALED),
    (emulated.transposed, "none", probes.TRANSPOSED),
    (emulated.half_odd, "bf16", probes.HALF),
]


def among(function: Callable[..., torch.Tensor], name: str = "auto") -> tuple[Backend, ...]:
    """Torch's backends with a faulty one in the place of one of them."""
    return tuple(faulty(function, name) if b.name == name else b for b in TORCH)


class Runs:
    """Pretrains with a tiny network on a processor, each run once."""

    def __init__(self, study_dir: Path, folder: Path) -> None:
        self.study, self.folder = study_dir, folder
        self.done: dict[tuple[object, ...], Path] = {}

    def __call__(self, backends: tuple[Backend, ...], *args: str, measured: bool = True) -> Path:
        key = (backends, args, measured)
        if key not in self.done:
            out = self.folder / f"run-{len(self.done)}"
            files = ["--table", self.study / "table.biom", "--tree", self.study / "tree.nwk"]
            given = [*TINY, *files, "--output-dir", out, "--epochs", "2", *args]
            options = built("pretrain", [str(word) for word in given])
            pretrain(options, BackendPolicy(backends, ("cpu",) if measured else ()))
            self.done[key] = out
        return self.done[key]


@pytest.fixture(scope="module")
def runs(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(study_dir, tmp_path_factory.mktemp("runs"))


def losses(run: Path) -> list[float]:
    """Every loss of every epoch: the sum of two losses can round to the same number."""
    table = read(run / "metrics.csv").filter(regex="^(train|val)_")
    return [float(value) for value in table.to_numpy().ravel()]


def attention(run: Path) -> dict[str, object]:
    return json.loads((run / "run.json").read_text())["attention"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("function", "precision", "fault"), FAULTS, ids=[f.__name__ for f, _, _ in FAULTS]
)
def test_a_faulty_backend_is_replaced_and_the_loss_is_that_of_a_right_stack(
    runs: Runs,
    capsys: pytest.CaptureFixture[str],
    function: Callable[..., torch.Tensor],
    precision: str,
    fault: probes.KernelFault,
) -> None:
    args = ("--mixed-precision", precision)
    run = runs(among(function), *args)
    printed = capsys.readouterr().err
    record = attention(run)
    assert record["faults"] == {"auto": [fault.name]}
    assert record["evidence"] == "measured before this run"
    if fault.harmless:
        assert (record["without_mask"], record["with_mask"]) == ("auto", "auto")
        assert "--attn-implementation" not in printed
        assert losses(run) == losses(runs(TORCH, *args, "--attn-implementation", "math"))
        return
    assert "--attn-implementation auto computes wrong on cpu; flash runs instead." in printed
    assert f"attention backend auto: {fault.name}" in printed
    assert (record["without_mask"], record["with_mask"]) == ("flash", "flash")
    assert losses(run) == losses(runs(TORCH, *args, "--attn-implementation", "flash"))
    # Without the check the same backend gives other numbers, or none.
    assert losses(runs(among(function), *args, measured=False)) != losses(run)


def test_a_correct_stack_uses_the_requested_backend(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    record = attention(runs(TORCH))
    assert (record["without_mask"], record["with_mask"]) == ("auto", "auto")
    assert record["faults"] == {}
    assert "attention backend" not in capsys.readouterr().err
    record = attention(runs(TORCH, measured=False))
    assert record["evidence"] == "not measured on a cpu"
    assert "faults" not in record


def test_no_check_keeps_the_requested_backend(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs(among(emulated.first_mask), "--no-check")
    assert attention(run)["evidence"] == "not measured: --no-check"
    assert attention(run)["with_mask"] == "auto"
    assert losses(run) == losses(runs(among(emulated.first_mask), measured=False))


def test_a_run_without_a_correct_backend_is_refused(runs: Runs) -> None:
    wrong = tuple(Backend(b.name, emulated.ignoring) for b in TORCH)
    with pytest.raises(Unavailable, match="No attention backend computes correctly on this device"):
        runs(wrong)


def test_a_backend_that_cannot_be_recomputed_is_not_used_for_that(runs: Runs) -> None:
    backends = among(emulated.Unrepeatable())  # type: ignore[arg-type]
    run = runs(backends, "--gradient-checkpointing")
    assert attention(run)["with_mask"] == "flash"
    assert attention(run)["faults"] == {"auto": [probes.RECOMPUTED.name]}


def test_train_and_predict_replace_a_faulty_backend(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = runs.study
    args = [*TINY, "--table", study / "table.biom", "--metadata", study / "metadata.tsv",
            "--metadata-column", "ph", "--members", "transformer", "--folds", "1",
            "--output-dir", tmp_path / "out"]  # fmt: skip
    policy = BackendPolicy(among(emulated.first_mask), ("cpu",))
    train(built("train", [str(word) for word in args]), policy=policy)
    assert attention(tmp_path / "out")["with_mask"] == "flash"
    capsys.readouterr()
    (model,) = build_networks(read_networks(tmp_path / "out"), DeviceOptions(device="cpu"), policy)
    assert model.attention["with_mask"] == "flash"
    assert "flash runs instead" in capsys.readouterr().err
    out = tmp_path / "predictions.tsv"
    files = ("--table", study / "table.biom", "--output", out)
    assert aam("predict", "--model", tmp_path / "out", *files, "--device", "cpu") == 0
    record = json.loads((tmp_path / "predictions.tsv.run.json").read_text())
    assert record["attention"]["evidence"] == "not measured on a cpu"
