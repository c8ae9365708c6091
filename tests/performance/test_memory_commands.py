"""`aam memory` of pretrain, train, predict, embed: parts, devices, the largest settings."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from aam.contract.errors import DataError
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.options.commands.measure import Memory
from aam.data.batches import Batch, BatchShard, make_batch
from aam.data.study import Study
from aam.distributed.environment import Ranks
from aam.numerics.report import from_json, store_report, to_json
from aam.performance.fit import show_step
from aam.performance.memory import LargestBatches, StepMemory
from aam.training.loader import share_of
from tests.support import local_ranks
from tests.support.check_reports import KEY
from tests.support.commands import aam
from tests.support.rank_steps import PLAN

SMALL = ("--embedding-dim", 32, "--attention-layers", 1)


def part(name: str, shown: str) -> float:
    """Return a part of the memory of a step in MiB."""
    number, unit = re.findall(rf"^{name} +([\d.]+) (\w+)", shown, re.MULTILINE)[0]
    return float(number) * {"KiB": 2**-10, "MiB": 1, "GiB": 2**10}[unit]


def shapes(batch: Batch) -> dict[str, object]:
    return {
        name: (value.shape, value.dtype) if hasattr(value, "dtype") else value
        for name, value in vars(batch).items()
        if name not in ("first_sample", "first_asv", "sequence_slots_BS")
    }


@pytest.mark.parametrize(("size", "hidden_ratio"), [(1, 0), (5, 0), (36, 0), (5, 0.15)])
def test_the_largest_batch_has_the_shapes_of_the_batch_of_its_samples(
    study: Study, size: int, hidden_ratio: float
) -> None:
    plan = dataclasses.replace(PLAN, hidden_ratio=hidden_ratio)
    batches = LargestBatches(study, plan)
    real = make_batch(study, plan, batches.rows_N[:size])
    assert shapes(batches.batch(size)) == shapes(real)


def test_the_shard_has_the_shapes_of_that_of_the_first_rank(study: Study) -> None:
    batches = LargestBatches(study, PLAN)
    real = share_of(make_batch(study, PLAN, batches.rows_N[:7]), Ranks(0, 2), True)
    predicted = batches.batch(7, ranks=2, sequences=True)
    assert isinstance(real, BatchShard)
    assert shapes(predicted) == shapes(real)


@pytest.mark.medium
def test_the_memory_of_driver_and_libraries_is_that_of_the_check_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report of a CPU, whose format is that of a GPU, with a size as `aam check` measures."""
    assert aam("check", "--quick", "--device", "cpu", "--json") == 0
    of_cpu = tmp_path / "cpu.json"
    of_cpu.write_text(capsys.readouterr().out)
    assert from_json(of_cpu.read_text()).overhead is None
    of_gpu = tmp_path / "gpu.json"
    report = dataclasses.replace(from_json(of_cpu.read_text()), overhead=700 * 2**20)
    of_gpu.write_text(to_json(report))
    memory = StepMemory(parameters=1, optimizer=2, gradients=3, activations=4, peak=5)

    def shown(path: Path | None) -> str:
        show_step(memory, "A step", Memory(check_report=path))
        return capsys.readouterr().out

    monkeypatch.delenv(CHECK_REPORTS, raising=False)
    assert part("driver and libraries, assumed", shown(None)) == 1024
    assert part("driver and libraries, measured", shown(of_gpu)) == 700
    cache = tmp_path / "cache"
    assert store_report(dataclasses.replace(report, key=KEY), cache) == ""
    monkeypatch.setenv(CHECK_REPORTS, str(cache))
    assert part("driver and libraries, measured", shown(None)) == 700
    with pytest.raises(DataError, match="The check report has no memory of a GPU"):
        shown(of_cpu)
    of_gpu.write_text("{")
    with pytest.raises(DataError):
        shown(of_gpu)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_check_of_a_gpu_measures_the_memory_of_driver_and_libraries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    aam("check", "--quick", "--device", "cuda", "--json")
    overhead = from_json(capsys.readouterr().out).overhead
    assert overhead is not None
    assert 50 * 2**20 < overhead < torch.cuda.get_device_properties(0).total_memory


@pytest.mark.slow
def test_pretraining_finds_the_largest_batch_and_chunk(
    study_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk", *SMALL)
    assert aam("memory", "--device-memory", 1.005, "pretrain", *args, "--batch-size", 4) == 0
    shown = capsys.readouterr().out
    shown = " ".join(shown.split())
    assert re.search(r"An APU .* needs [\d.]+ GiB, with [\d.]+ [MG]iB of the process", shown)
    assert "A batch of 4 samples fits on GPUs of 16, 24, 32, 64, 80, 128, 192 GiB." in shown
    assert 0 < int(re.findall(r"Largest --batch-size on 1.005 GiB: (\d+) of 35", shown)[0]) < 35
    assert "ASVs of a batch fit at once" in shown
    unused = ("--output-dir", "none", "--overwrite")
    assert aam("memory", "--json", "pretrain", *args, "--batch-size", 4, *unused) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["batch_size"] == 4 and facts["overhead"] == 2**30
    assert facts["needed"] == round(1.2 * facts["peak"]) + 2**30
    assert aam("memory", "pretrain", *args, "--attention-heads", 3) == 64
    assert "The heads do not divide the width" in capsys.readouterr().err


@pytest.mark.slow
def test_training_and_prediction(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ("--table", study_dir / "table.biom")
    labels = ("--metadata", study_dir / "metadata.tsv", "--metadata-column")
    run, model = tmp_path / "run", tmp_path / "site"
    assert aam("pretrain", *table, *SMALL, "--penalty", 0, "--epochs", 1, "--output-dir", run) == 0
    base = ("--pretrained-encoder", run, "--classifier")
    capsys.readouterr()
    assert aam("memory", "train", *table, *labels, "site", *base) == 0
    whole = capsys.readouterr().out
    assert aam("memory", "train", *table, *labels, "site", *base, "--freeze-base") == 0
    frozen = capsys.readouterr().out
    assert part("activations", frozen) < part("activations", whole) / 2
    train = ("train", *table, *labels, "site", *base, "--members", "transformer", "--epochs", 1)
    assert aam(*train, "--folds", 1, "--output-dir", model) == 0
    capsys.readouterr()
    assert aam("memory", "predict", *table, "--model", model) == 0
    assert "--batch-size 32 fits on GPUs of 16" in capsys.readouterr().out
    assert aam("memory", "--json", "embed", *table, "--model", model) == 0
    assert json.loads(capsys.readouterr().out)["overhead"] == 2**30
    assert aam("memory", "--device-memory", 16, "embed", *table, "--model", model) == 64


@pytest.mark.slow
@local_ranks.NEEDS_FSDP
def test_the_peak_of_a_rank_of_fsdp_is_smaller(
    study_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--table", study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
    command = ("memory", "train", *args, "--metadata-column", "ph", *SMALL)
    assert aam(*command) == 0
    whole = capsys.readouterr().out
    assert aam(*command, "--fsdp", "--processes", 4) == 0
    shown = capsys.readouterr().out
    assert "memory of a step on each GPU" in shown and part("peak", shown) < part("peak", whole)
