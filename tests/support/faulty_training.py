"""Program that trains the real network with a planted fault, for tests of `aam tune`.

    python faulty_training.py TABLE TREE KERNEL PRECISION

KERNEL is `auto` or `math`, which are healthy, or a fault: `mask`, the mask of the first sample for
all; `gradient`, the gradient of attention times 0.9; `fp16`, weights rounded to fp16 after each
step. PRECISION is `fp32` or `bf16`. Every change logs half the time of the default, so all look
faster.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

from aam.contract.options.groups import LoopOptions, PhylogenyOptions, TableOptions
from aam.data.study import load_study
from aam.network.batches import BatchPlan, TrainingBatches
from aam.network.model.attention import AUTO, Backend, Backends, named
from aam.network.model.network import Encoder
from aam.network.model.shape import NetworkShape
from aam.network.training.fit import make_optimizer
from aam.network.training.module import (
    LossWeights,
    TrainingModule,
)
from aam.network.training.observers import add_noise
from tests.support.faulty_backends import first_mask, right


def scaled_gradient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    out = right(q, k, v, mask)
    if out.requires_grad:
        out.register_hook(lambda by_out: by_out * 0.9)
    return out


BACKENDS = {
    "math": Backends(named("math"), named("math")),
    "mask": Backends(named("auto"), Backend("mask", first_mask)),
    "gradient": Backends(
        Backend("gradient", scaled_gradient), Backend("gradient", scaled_gradient)
    ),
}


def main(table: str, tree: str, kernel: str, precision: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    study = load_study(TableOptions(table=Path(table)), PhylogenyOptions(tree=Path(tree)))
    plan = BatchPlan(3, 400, 1024, mask_ratio=0.15, metric="unweighted")
    batches = TrainingBatches(study, plan, np.arange(len(study.table.sample_ids)), 8, True)
    shape = NetworkShape(study.tokens_FL.shape[1], 32, 4, 2, 5, dropout=0.1)
    encoder = Encoder(shape, "unweighted", BACKENDS.get(kernel, AUTO))
    encoder.diversity.requires_grad_(False)
    task = TrainingModule(encoder, LossWeights(), LoopOptions(lr=2e-3), steps=1).train()
    noise, seed = os.environ["AAM_WEIGHT_NOISE"], os.environ["AAM_WEIGHT_NOISE_SEED"]
    add_noise(task, float(noise), int(seed))
    optimizer = make_optimizer(task, task.loop)
    with open(os.environ["AAM_STEP_LOG"], "w", buffering=1) as log:
        for number in range(int(os.environ["AAM_STEPS"])):
            batch = batches[divmod(number, batches.steps)]
            task.train_sums = {}
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = task(batch)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            task.clip_gradients(task.gradient_norm())
            optimizer.step()
            if kernel == "fp16":
                with torch.no_grad():
                    for weight in task.parameters():
                        weight.copy_(weight.half())
            seconds = (2.0 if kernel == "auto" else 1.0) * (2.0 if precision == "fp32" else 1.0)
            line = {
                "step": number,
                "loss": float(task.train_sums["loss"].mean),
                "seconds": seconds,
                "samples": len(batch.rows_B),
            }
            print(json.dumps(line), file=log)


if __name__ == "__main__":
    main(*sys.argv[1:])
