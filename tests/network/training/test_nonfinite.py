"""Non-finite losses and gradients: the run ends, names the cause, and keeps its checkpoints."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aam.contract.errors import NotFinite
from aam.contract.options.groups import LoopOptions, ScaleOptions
from aam.data.study import Study
from aam.network.batches import BatchPlan, FixedBatches, TrainingBatches
from aam.network.distributed.collectives import SINGLE_PROCESS
from aam.network.inference.stored_networks import DiversityScale, ModelConfig
from aam.network.model.attention import AUTO, Backend, Backends, named
from aam.network.model.shape import NetworkShape
from aam.network.training import checkpoints
from aam.network.training.configuration import Runtime
from aam.network.training.finite import OVERFLOWS, FiniteCheck
from aam.network.training.fit import fit
from aam.network.training.module import GradientStep, LossWeights, TrainingModule
from aam.network.training.runs import optimizer_steps
from tests.support.commands import pretrain, read
from tests.support.rank_steps import Spoiled, fit_options, repeat_steps, spoiled_step
from tests.support.rank_steps import train as train_loop

PLAN = BatchPlan(1, 200, 1024, mask_ratio=0.15, metric="unweighted")
SHAPE = NetworkShape(60, 16, 2, 1, 5, dropout=0.2)
LOOP = LoopOptions(epochs=3, batch_size=6, lr=1e-2, gradient_accumulation_steps=2, seed=1)
MATH = named("math").function


def run(
    study: Study,
    folder: Path,
    backends: Backends = AUTO,
    spoiled: tuple[int, int] = (-1, -1),
    resume: bool = False,
) -> dict[str, object]:
    """Train; returns what was noted for the record."""
    torch.manual_seed(3)
    config = ModelConfig("pretrain", SHAPE, "unweighted", PLAN, DiversityScale(), None, {})
    task = TrainingModule(config.network(backends), LossWeights(), LOOP, optimizer_steps(24, LOOP))
    training = Spoiled(study, PLAN, np.arange(24), LOOP.batch_size, fresh_reads=True)
    training.spoiled = spoiled
    options = fit_options(
        folder, LOOP, resume_from=folder if resume else None, checkpoint_every_n_steps=1
    )
    noted: dict[str, object] = {}
    runtime = Runtime(torch.device("cpu"))
    validation = FixedBatches(study, PLAN, np.arange(24, 36), LOOP.batch_size)
    try:
        fit(task, config, training, validation, options, runtime, noted.__setitem__)
    except NotFinite as error:
        noted["error"] = error
    return noted


def kept(folder: Path) -> dict[str, Tensor]:
    return checkpoints.read(folder / "checkpoints" / "last.ckpt").weights


def test_a_learning_rate_that_is_too_high(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--tree", study_dir / "tree.nwk", "--lr", "1e6")
    more = ("--max-grad-norm", "0", "--checkpoint-every-n-steps", "1", "--epochs", "3")
    assert pretrain(study_dir, tmp_path / "run", *args, *more) == 70
    printed = capsys.readouterr().err.splitlines()[-1]
    record = json.loads((tmp_path / "run" / "run.json").read_text())["not_finite"]
    assert record["step"] == 2
    assert (record["epoch"], record["batch"]) == (1, 2)
    assert record["reproduced"] is True
    trained = read(tmp_path / "run" / "splits.tsv").query("split == 'train'")["sample-id"]
    assert set(record["samples"]) < set(trained)
    assert f" not finite: step 2, epoch 1, batch 2, {record['where']}, " in printed
    assert f"samples {len(record['samples'])} ({record['samples'][0]}, " in printed
    assert "; start a new run with a lower --lr than 1e+06; '" in printed
    assert "aam check" not in printed
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]
    assert printed.endswith("was written before, --pretrained-encoder starts from its encoder.")
    assert all(value.isfinite().all() for value in kept(tmp_path / "run").values())


def test_a_nan_in_a_batch_is_located(study: Study, tmp_path: Path) -> None:
    noted = run(study, tmp_path, spoiled=(1, 2))
    error, record = noted["error"], noted["not_finite"]
    assert isinstance(error, NotFinite)
    assert error.cause == "The batch is not finite"
    # 4 batches an epoch, two to a step: the third batch of the second epoch is in the fourth step.
    assert "step 4, epoch 2, batch 3, in its distances_BB, samples 6 (" in error.evidence
    assert isinstance(record, dict)
    rows = TrainingBatches(study, PLAN, np.arange(24), 6, True)[1, 2].rows_B
    assert record["samples"] == [study.table.sample_ids[row] for row in rows.tolist()]


@pytest.mark.medium
def test_a_run_resumes_from_the_checkpoint_before_the_nan(study: Study, tmp_path: Path) -> None:
    run(study, tmp_path / "whole")
    assert "error" in run(study, tmp_path / "stopped", spoiled=(1, 2))
    assert "error" not in run(study, tmp_path / "stopped", resume=True)
    whole, stopped = kept(tmp_path / "whole"), kept(tmp_path / "stopped")
    for name, value in whole.items():
        assert torch.equal(stopped[name], value), name


def nan_with_a_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    out = MATH(q, k, v, mask)
    return out if mask is None else out * torch.nan


class Gradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def nan_gradient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return MATH(q, k, Gradient.apply(v, torch.nan) if mask is not None else v, mask)


def steep_gradient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return MATH(q, k, Gradient.apply(v, 1e24) if mask is not None else v, mask)


class OnceOnly:
    """A device that fails once: the eighth product of masks comes out as no number."""

    calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        out = MATH(q, k, v, mask)
        if mask is None:
            return out
        self.calls += 1
        return out * (torch.nan if self.calls == 8 else 1.0)


# Sequences have one length here, so masks are those of the sample encoder.
FAULTS = {
    "forward": (
        nan_with_a_mask,
        "Values of the network are not finite",
        "first before samples.transformer.blocks.0.out",
    ),
    "backward": (
        nan_gradient,
        "The gradients are not finite",
        "first at the output of samples.transformer.blocks.0.qkv",
    ),
    "norm": (
        steep_gradient,
        "The norm of the gradients is not finite",
        "epoch 1, batch 2, although each gradient is finite",
    ),
    "once": (
        OnceOnly(),
        "Loss or gradients were not finite",
        "but are when the step is repeated: the device or torch.compile is at fault",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_non_finite_module_is_named(study: Study, tmp_path: Path, fault: str) -> None:
    function, cause, where = FAULTS[fault]
    faulty = Backend("faulty", function)
    noted = run(study, tmp_path, Backends(faulty, faulty))
    error = noted["error"]
    assert isinstance(error, NotFinite)
    assert error.status == 70
    assert error.cause == cause
    assert where in error.evidence
    assert ("step 1, " in error.evidence) == (fault != "once")


def test_a_step_is_repeated_exactly(study_dir: Path) -> None:
    """With dropout and accumulation; several ranks: tests.network.distributed.test_ranks."""
    steps = repeat_steps(SINGLE_PROCESS, study_dir, ScaleOptions())
    assert steps == [True] * 4


def test_the_weights_do_not_change_before_the_flag_is_read(study_dir: Path) -> None:
    """By the optimizer of a GPU; several ranks: tests.network.distributed.test_ranks."""
    kept, batches, place = spoiled_step(SINGLE_PROCESS, study_dir, ScaleOptions())
    assert kept and place.startswith("step 2, epoch 1, batch 2, in its distances_BB, samples 6 (")
    assert batches == 3


def scaled(
    study: Study, folder: Path, factor: float, backends: Backends = AUTO
) -> tuple[float, int, TrainingModule]:
    """Train in fp16 with loss scaling, on the CPU; returns the factor and the steps at the end."""
    torch.manual_seed(3)
    config = ModelConfig("pretrain", SHAPE, "unweighted", PLAN, DiversityScale(), None, {})
    loop = dataclasses.replace(LOOP, epochs=10, gradient_accumulation_steps=1)
    task = TrainingModule(config.network(backends), LossWeights(), loop, 40)
    training = TrainingBatches(study, PLAN, np.arange(24), loop.batch_size, fresh_reads=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=factor)
    step = GradientStep(task, task, "fp16", scaler)
    check = FiniteCheck(step, study.table.sample_ids, folder / "last.ckpt", lambda name, fact: None)
    done = train_loop(check, training)
    return scaler.get_scale(), done.progress.step, task


@pytest.mark.medium
def test_the_warm_up_of_loss_scaling_is_no_fault(study: Study, tmp_path: Path) -> None:
    factor, _, task = scaled(study, tmp_path, 2.0**30)
    # It had to halve its factor many times, and then trained.
    assert 1 < factor < 2.0**24
    assert all(p.isfinite().all() for p in task.parameters())


def test_gradients_that_overflow_at_any_loss_scale_end_the_run(
    study: Study, tmp_path: Path
) -> None:
    faulty = Backend("faulty", nan_gradient)
    with pytest.raises(NotFinite, match="use --mixed-precision bf16 or none") as caught:
        scaled(study, tmp_path, 2.0**16, Backends(faulty, faulty))
    assert f"step {OVERFLOWS}, " in caught.value.evidence
    assert "first at the output of samples.transformer.blocks.0.qkv" in caught.value.evidence


def test_a_loss_that_overflows_fp16_ends_the_run(study: Study, tmp_path: Path) -> None:
    def large(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return MATH(q, k, v, mask) * 1e6

    with pytest.raises(NotFinite, match="not finite: step 1, "):
        scaled(study, tmp_path, 2.0**16, Backends(Backend("large", large), Backend("large", large)))
