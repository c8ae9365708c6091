"""Losses, gradients and weights do not depend on the world size or the strategy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aam.contract.options.groups import LoopOptions, ScaleOptions
from tests.support.local_ranks import NEEDS_FSDP, together
from tests.support.rank_steps import PLAN, SITES, Case, alone, learn_all, repeat_steps, spoiled_step

pytestmark = pytest.mark.medium

DDP = ScaleOptions(distributed=True)
FSDP = ScaleOptions(fsdp=True)

PLAIN = Case()
# Not clipped: a clipped gradient would hide a factor.
ACCUMULATED = Case(loop=LoopOptions(epochs=7, batch_size=6, lr=1e-2, seed=1,
                                    gradient_accumulation_steps=3, max_grad_norm=0.0))  # fmt: skip
FAITH = Case(plan=dataclasses.replace(PLAN, metric="faith_pd"))
TRAINED = Case(target=SITES)
HIDDEN = Case(plan=dataclasses.replace(PLAN, hidden_ratio=0.3))
TARGET_ALONE = Case(plan=dataclasses.replace(PLAN, metric=None), target=SITES)


def same(one: dict[str, Any], many: dict[str, Any], exact: float = 1e-9) -> None:
    """Compare losses, first gradients and last weights, all in double precision."""
    for name, expected in one["losses"].items():
        np.testing.assert_allclose(many["losses"][name], expected, rtol=1e-6, err_msg=name)
    for part in ("gradient", "weights"):
        assert one[part].keys() == many[part].keys()
        for name, expected in one[part].items():
            np.testing.assert_allclose(many[part][name], expected, exact, exact, err_msg=name)


@pytest.fixture(scope="module")
def ones(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what one process finds in a case; each case is fitted once."""
    known: dict[Case, dict[str, Any]] = {}

    def of(case: Case) -> dict[str, Any]:
        if case not in known:
            known[case] = alone(study_dir, tmp_path_factory.mktemp("one"), case)
        return known[case]

    return of


@pytest.mark.parametrize(
    ("scale", "size", "cases"),
    [
        pytest.param(DDP, 2, (PLAIN, ACCUMULATED, TRAINED, TARGET_ALONE, HIDDEN), id="ddp-2"),
        pytest.param(DDP, 4, (PLAIN, FAITH, TRAINED), id="ddp-4", marks=pytest.mark.nightly),
        pytest.param(FSDP, 2, (PLAIN, ACCUMULATED, TRAINED, HIDDEN), id="fsdp-2", marks=NEEDS_FSDP),
        pytest.param(FSDP, 4, (PLAIN,), id="fsdp-4", marks=(NEEDS_FSDP, pytest.mark.nightly)),
    ],
)
def test_results_do_not_depend_on_the_world_size(
    study_dir: Path,
    tmp_path: Path,
    ones: Any,
    scale: ScaleOptions,
    size: int,
    cases: tuple[Case, ...],
) -> None:
    shared = [dataclasses.replace(case, scale=scale) for case in cases]
    found = together(size, scale, learn_all, study_dir, tmp_path, shared)
    assert isinstance(found[0], list), found  # else the status and message of its error
    for k, case in enumerate(cases):
        same(ones(case), found[0][k])
        for other in found[1:]:
            for name, value in found[0][k]["gradient"].items():
                assert torch.equal(value, other[k]["gradient"][name]), name


@pytest.mark.nightly
@pytest.mark.parametrize("scale", [DDP, pytest.param(FSDP, marks=NEEDS_FSDP)])
def test_chunks_of_asvs_change_no_result(
    study_dir: Path, tmp_path: Path, ones: Any, scale: ScaleOptions
) -> None:
    """Two ranks in chunks of 7 ASVs, whose last ones differ by rank, equal one rank without."""
    cases = (PLAIN, TRAINED)
    chunked = [dataclasses.replace(case, scale=scale, asv_chunk=7) for case in cases]
    found = together(2, scale, learn_all, study_dir, tmp_path, chunked)
    assert isinstance(found[0], list), found  # else the status and message of its error
    for k, case in enumerate(cases):
        same(ones(case), found[0][k])


@pytest.mark.parametrize("scale", [DDP, pytest.param(FSDP, marks=NEEDS_FSDP)])
def test_a_step_is_repeated_exactly(study_dir: Path, scale: ScaleOptions) -> None:
    """With dropout and accumulation, whose first batch is not synchronised."""
    assert together(2, scale, repeat_steps, study_dir, scale) == [[True] * 4] * 2


@pytest.mark.parametrize("scale", [DDP, pytest.param(FSDP, marks=NEEDS_FSDP)])
def test_the_weights_do_not_change_before_the_flag_is_read(
    study_dir: Path, scale: ScaleOptions
) -> None:
    """The value that is no number is in the part of one rank; both leave the step out."""
    for kept, batches, place in together(2, scale, spoiled_step, study_dir, scale):
        assert kept and place.startswith("step 2, epoch 1, batch 2, in its distances_BB, samples ")
        assert batches == 3
