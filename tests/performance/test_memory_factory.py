"""`aam memory factory`: the predicted memory of a step of any network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aam.contract.options.commands.memory import MemoryFactory, StackOptions
from aam.performance.memory.factory import factory_memory
from aam.performance.memory.step import TrainingSteps, Workload
from tests.support.allocator import allocated_peak
from tests.support.commands import aam

WIDTH, BATCH = 256, 64


def mean_square(model: nn.Module, x_BD: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(model(x_BD)).square().mean()


def build() -> tuple[nn.Module, torch.Tensor, object]:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers), torch.zeros(BATCH, WIDTH), mean_square


def no_tuple() -> nn.Module:
    return nn.Linear(2, 2)


def test_the_peak_is_that_of_the_allocator(tmp_path: Path) -> None:
    def steps() -> TrainingSteps:
        model, x_BD, _ = build()
        workload = Workload(
            model, lambda: mean_square(model, x_BD), lambda: torch.optim.AdamW(model.parameters())
        )
        return TrainingSteps(workload, "none", foreach=True)

    predicted = factory_memory(MemoryFactory(factory=f"{__name__}:build", gpu=StackOptions()))
    truth = allocated_peak(steps, tmp_path / "trace.json")
    assert predicted.parameters == 4 * (WIDTH * WIDTH + WIDTH) * 4
    assert predicted.optimizer == pytest.approx(2 * predicted.parameters, rel=0.01)
    assert predicted.peak == pytest.approx(truth, rel=0.02)


def test_a_network_that_no_machine_holds_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "large_network.py").write_text(
        "import torch\n"
        "def step():\n"
        "    model = torch.nn.Linear(200_000, 200_000)\n"
        "    return model, torch.zeros(8, 200_000), lambda model, x: model(x).sum()\n"
    )
    monkeypatch.chdir(tmp_path)
    assert aam("memory", "factory", "large_network:step") == 0
    shown = capsys.readouterr().out
    assert "parameters" in shown and "149.0 GiB" in shown
    assert "A step of large_network:step fits on no GPU of up to 192 GiB." in shown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:step", "The factory cannot be imported"),
        (f"{__name__}:no_such_function", "The factory cannot be imported"),
        (__name__, "The factory cannot be imported"),
        (f"{__name__}:no_tuple", "The factory does not return model, batch and loss"),
    ],
)
def test_a_wrong_factory_is_refused(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aam("memory", "factory", name) == 64
    assert message in capsys.readouterr().err
