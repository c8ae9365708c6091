"""torch.compile: used where it reproduces the eager network, else one warning."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from aam.network.model.attention import AUTO
from aam.network.model.encoders import NucleotideEncoder
from aam.network.model.shape import NetworkShape
from aam.network.model.transformer import PRODUCTS
from aam.network.training.finite import eager_again
from aam.network.training.fit import compile_in_place
from tests.support.commands import TINY, pretrain, read

SHAPE = NetworkShape(max_bp=30, embedding_dim=8, attention_heads=2, attention_layers=1, dropout=0.0)
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
needs_compiler = pytest.mark.skipif(
    COMPILER is None and not os.environ.get("CI"), reason="no C++ compiler"
)


def encode(module: NucleotideEncoder, tokens_UL: Tensor) -> list[Tensor]:
    """Vectors, hidden states and gradients."""
    module.zero_grad()
    outputs = module(tokens_UL, bool((tokens_UL == 0).any()))
    (outputs[0].square().sum() + outputs[1].sum()).backward()
    return [*outputs, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def tokens(number: int, shortest: int) -> Tensor:
    torch.manual_seed(number)
    drawn = torch.randint(1, 6, (number, 30), dtype=torch.uint8)
    drawn[0, shortest:] = 0
    return drawn


@pytest.mark.medium
@needs_compiler
def test_a_compiled_layer_gives_the_same_numbers() -> None:
    torch.manual_seed(0)
    module, samples = nn.Linear(4, 4), torch.randn(3, 4)
    eager = module(samples)
    assert compile_in_place(module, (samples,), nullcontext, "none", 1, 4) == ""
    assert module._compiled_call_impl is not None
    torch.testing.assert_close(module(samples), eager, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.slow
@needs_compiler
def test_a_compiled_encoder_gives_the_same_numbers() -> None:
    torch.manual_seed(0)
    module = NucleotideEncoder(SHAPE, AUTO, False)
    nn.init.normal_(module.position)
    samples = [tokens(6, 20), tokens(11, 25)]
    expected = [encode(module, drawn) for drawn in samples]
    state = torch.get_rng_state()
    reason = compile_in_place(module, (samples[0], True), nullcontext, "none", PRODUCTS + 2, 32)
    assert reason == ""
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert module._compiled_call_impl is not None
    for eager, drawn in zip(expected, samples, strict=True):
        for one, two in zip(eager, encode(module, drawn), strict=True):
            torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    eager_again(module)
    for one, two in zip(expected[0], encode(module, samples[0]), strict=True):
        assert torch.equal(one, two)


class Noisy(nn.Module):
    """Gives other numbers when compiled: the compiler has its own random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.rand_like(x)


@pytest.mark.medium
@needs_compiler
def test_a_compiler_that_computes_something_else_is_not_used() -> None:
    module = Noisy()
    reason = compile_in_place(module, (torch.ones(3, 4),), nullcontext, "none", 1, 4)
    assert re.search(
        r"its values differ by [\d.e-]+ of the largest value, rounding explains [\d.e-]+", reason
    )
    assert module._compiled_call_impl is None


@pytest.mark.slow
@pytest.mark.nightly
def test_without_a_compiler_the_eager_network_runs_and_is_recorded(
    study_dir: Path, tmp_path: Path
) -> None:
    same = ("--tree", study_dir / "tree.nwk")
    assert pretrain(study_dir, tmp_path / "eager", *same) == 0
    command = ("pretrain", *TINY, "--table", study_dir / "table.biom", *same,
               "--output-dir", tmp_path / "requested", "--compile-model")  # fmt: skip
    # A compiler that is not there, and nothing compiled earlier.
    variables = {"CXX": "no-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "aam.cli", *map(str, command)],
        capture_output=True, text=True, env=os.environ | variables, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [warning] = [line for line in done.stderr.splitlines() if "warning" in line]
    assert "--compile-model: the network runs without torch.compile: " in warning
    eager, requested = (json.loads((tmp_path / name / "run.json").read_text())
                        for name in ("eager", "requested"))  # fmt: skip
    assert "compile" not in eager
    assert (requested["compile"]["requested"], requested["compile"]["used"]) == ("auto", False)
    assert "no-compiler" in requested["compile"]["reason"]
    eager, requested = (read(tmp_path / name / "metrics.csv") for name in ("eager", "requested"))
    assert eager.drop(columns="seconds").equals(requested.drop(columns="seconds"))
