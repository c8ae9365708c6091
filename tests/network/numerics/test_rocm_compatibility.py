"""Tests of an AMD GPU before its results are used (`.github/workflows/acceptance.yml`).

    pytest -m rocm -rs tests/network/numerics/test_rocm_compatibility.py

Elsewhere every test is skipped with the reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aam.cli import main
from aam.contract.options.commands.studies import Example
from aam.data.simulation import simulate, write_study
from aam.network.inference.stored_networks import read_networks

pytestmark = pytest.mark.rocm

SMALL = ("--embedding-dim", "32", "--attention-heads", "2", "--attention-layers", "1",
         "--epochs", "2", "--batch-size", "8", "--patience", "0", "--dropout", "0")  # fmt: skip


@pytest.fixture(autouse=True)
def on_rocm() -> None:
    if torch.version.hip is None:
        pytest.skip(f"PyTorch {torch.__version__} is not built for ROCm")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no AMD GPU here")


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rocm")
    options = Example(output_dir=folder, samples=40, asvs=120, length=90, richness=30,
                       depth=900, subjects=10, seed=3)  # fmt: skip
    write_study(simulate(options), options)
    return folder


def devices() -> list[torch.device]:
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def test_every_gpu_computes() -> None:
    """A GPU that is listed but does not work (apptainer issue 3261) fails at its first product."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(512, 384, generator=generator)
    right = torch.randn(384, 256, generator=generator)
    expected = left.double() @ right.double()
    for device in devices():
        found = (left.to(device) @ right.to(device)).cpu().double()
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


def test_the_build_of_torch_has_the_arch_of_every_gpu() -> None:
    built = torch.cuda.get_arch_list()
    for device in devices():
        arch = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        assert arch in built, f"{device} is {arch}"


def test_the_library_is_the_one_of_the_build() -> None:
    """Under --rocm the host's libraries replace those of an image."""
    torch.ones(1, device="cuda")
    maps = Path("/proc/self/maps").read_text()
    assert "/.singularity.d/libs/" not in maps


def test_training_gives_what_the_processor_gives(studied: Path, tmp_path: Path) -> None:
    """In full precision the first epochs of both differ by rounding alone."""
    weights = {}
    for device in ("cpu", "cuda"):
        args = ["pretrain", *SMALL, "--table", str(studied / "table.biom"), "--tree",
                str(studied / "tree.nwk"), "--device", device, "--output-dir",
                str(tmp_path / device)]  # fmt: skip
        assert main(args) == 0
        weights[device] = read_networks(tmp_path / device)[0].encoder_weights
    for name, expected in weights["cpu"].items():
        torch.testing.assert_close(weights["cuda"][name].cpu(), expected, atol=1e-2, rtol=1e-2)


def test_what_is_freed_can_be_used_again() -> None:
    """Half of the free memory, twice: on an APU it is shared with the processor's."""
    free, _ = torch.cuda.mem_get_info()
    for _ in range(2):
        held = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
        held.fill_(7)
        assert int(held[-1]) == 7
        del held
        torch.cuda.empty_cache()
