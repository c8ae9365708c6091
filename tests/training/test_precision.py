"""Precision of a run: selection by GPU architecture, and numbers close to fp32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from aam.contract.errors import UsageError
from aam.numerics.device import arch_of, choose_precision, has_bf16
from tests.support.commands import pretrain, read

BF16 = {
    "cpu": True,
    "gfx906": False,
    "gfx942": True,
    "gfx1030": False,
    "gfx2000": None,
    "sm_75": False,
    "sm_90": True,
}


@pytest.mark.parametrize("arch", BF16)
def test_bf16_by_architecture(arch: str) -> None:
    assert has_bf16(arch) is BF16[arch]
    expected = "bf16" if BF16[arch] and arch != "cpu" else "none"
    assert choose_precision("auto", arch) == expected
    assert choose_precision("none", arch) == "none"
    if BF16[arch] is False:
        with pytest.raises(
            UsageError, match=f"no bf16: --mixed-precision bf16 on {arch}; use fp16"
        ):
            choose_precision("bf16", arch)
    else:
        assert choose_precision("bf16", arch) == "bf16"
    if arch == "cpu":
        with pytest.raises(UsageError, match="fp16 needs a GPU"):
            choose_precision("fp16", arch)
    else:
        assert choose_precision("fp16", arch) == "fp16"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_architecture_of_a_gpu_is_named_as_torch_names_it() -> None:
    assert arch_of(torch.device("cuda", 0)) in torch.cuda.get_arch_list()


@pytest.mark.medium
def test_bf16_trains_close_to_fp32(study_dir: Path, tmp_path: Path) -> None:
    args = ("--tree", study_dir / "tree.nwk", "--epochs", "8", "--dropout", "0")
    runs = {}
    for precision in ("none", "bf16", "auto"):
        folder = tmp_path / precision
        more = (*args, "--mixed-precision", precision, "--report-fp32-fallbacks")
        assert pretrain(study_dir, folder, *more) == 0
        losses = read(folder / "metrics.csv")["val_loss"]
        runs[precision] = (losses, json.loads((folder / "run.json").read_text()))
    plain, half = runs["none"][0], runs["bf16"][0]
    # It learns, and by nearly as much.
    assert half.iloc[-1] < half.iloc[0]
    assert abs(half.iloc[-1] - plain.iloc[-1]) < 0.2 * (plain.iloc[0] - plain.iloc[-1])
    assert not half.equals(plain)
    # On a CPU 'auto' is fp32.
    assert runs["auto"][0].equals(plain)
    assert [runs[name][1]["precision"] for name in runs] == ["none", "bf16", "none"]
    fallbacks = runs["bf16"][1]["fp32_fallbacks"]
    assert "fp32_fallbacks" not in runs["none"][1]
    named = {name for names in fallbacks.values() for name in names}
    # The distance is computed in fp32 on purpose; products are not.
    assert any(name.endswith("distance") for name in named)
    assert "Linear" not in fallbacks
