"""`aam memory`, `--batch-size auto` and `--asv-chunk auto`: parts, devices, settings that fit."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.contract.errors import DataError, UsageError
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.options.commands.measure import Memory
from aam.contract.options.commands.train import Pretrain
from aam.contract.options.conditions import require_consistent
from aam.contract.options.groups import (
    DeviceOptions,
    LoopOptions,
    ModelOptions,
    PhylogenyOptions,
    SpeedOptions,
)
from aam.data.study import Study
from aam.environment import Ranks
from aam.network.batches import Batch, BatchShard, make_batch, shard_of
from aam.network.memory_prediction import (
    LargestBatches,
    MemoryLimit,
    StepMemory,
    StepSettings,
    TrainingRun,
    automatic,
    choose,
    limit_of,
    needed,
    pretraining_run,
    show_step,
    with_chunk,
)
from aam.network.numerics.report import CheckReport
from tests.support import local_ranks
from tests.support.check_reports import KEY
from tests.support.commands import aam, pretrain
from tests.support.option_groups import option_groups
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
    real = shard_of(make_batch(study, PLAN, batches.rows_N[:7]), Ranks(0, 2), True)
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
    assert CheckReport.from_json(of_cpu.read_text()).overhead is None
    of_gpu = tmp_path / "gpu.json"
    report = dataclasses.replace(CheckReport.from_json(of_cpu.read_text()), overhead=700 * 2**20)
    of_gpu.write_text(report.to_json())
    memory = StepMemory(parameters=1, optimizer=2, gradients=3, activations=4, peak=5)

    def shown(path: Path | None) -> str:
        show_step(memory, "A step", Memory(check_report=path))
        return capsys.readouterr().out

    monkeypatch.delenv(CHECK_REPORTS, raising=False)
    assert part("driver and libraries, assumed", shown(None)) == 1024
    assert part("driver and libraries, measured", shown(of_gpu)) == 700
    cache = tmp_path / "cache"
    assert dataclasses.replace(report, key=KEY).store(cache) == ""
    monkeypatch.setenv(CHECK_REPORTS, str(cache))
    assert part("driver and libraries, measured", shown(None)) == 700
    with pytest.raises(DataError, match="The check report has no measurement of GPU memory"):
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
    overhead = CheckReport.from_json(capsys.readouterr().out).overhead
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
    base = ("--pretrained-encoder", run)  # the sites are words, so classes
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


ALONE = ("--penalty", 0)
GLOBAL = 12


def options_of(study_dir: Path, folder: Path, loop: LoopOptions, speed: SpeedOptions) -> Pretrain:
    tree = PhylogenyOptions(tree=study_dir / "tree.nwk")
    model = ModelOptions(embedding_dim=32, attention_layers=1)
    table = study_dir / "table.biom"
    return Pretrain(
        **option_groups(table, folder, phylogeny=tree, model=model, loop=loop, speed=speed)
    )


@pytest.fixture(scope="module")
def run(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    folder = tmp_path_factory.mktemp("run")
    return pretraining_run(options_of(study_dir, folder, LoopOptions(), SpeedOptions()))


def limit(run: TrainingRun, settings: StepSettings, steps: int) -> MemoryLimit:
    """Return a limit into which a step just fits, with accumulation over `steps` batches."""
    loop = dataclasses.replace(run.loop, gradient_accumulation_steps=steps)
    return MemoryLimit(needed(dataclasses.replace(run, loop=loop).memory(settings).peak, 0), 0)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("size", "steps", "chunk"), [(12, 1, 0), (6, 2, 0), (4, 3, 0), (12, 1, 64)]
)
def test_the_largest_part_of_the_global_batch_that_fits_is_chosen(
    run: TrainingRun, size: int, steps: int, chunk: int
) -> None:
    """Whole batches in chunks come before smaller batches, which are another training."""
    speed = SpeedOptions(asv_chunk="auto" if chunk else 0)
    fitting = with_chunk(StepSettings(size, speed), chunk)
    chosen, accumulated = choose(
        run, StepSettings(GLOBAL, speed), limit(run, fitting, steps), divide=True
    )
    assert (chosen.batch_size, accumulated, chosen.speed.chunk_size) == (size, steps, chunk)


@pytest.mark.medium
def test_what_fits_nowhere_and_more_ranks_than_samples_are_refused(run: TrainingRun) -> None:
    with pytest.raises(UsageError, match=r"--batch-size 1, 1\.0 MiB on the GPU"):
        choose(run, StepSettings(GLOBAL, SpeedOptions()), MemoryLimit(2**20), divide=True)
    settings = StepSettings(GLOBAL, SpeedOptions(), ranks=32)
    with pytest.raises(UsageError, match="12 samples, 32 ranks; give a larger --global-batch-size"):
        choose(run, settings, MemoryLimit(2**40), divide=True)


@pytest.mark.medium
def test_automatic_settings_that_fit_are_those_of_the_default_training(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pretrain(study_dir, tmp_path / "default", *ALONE, "--epochs", 1) == 0
    automatic = ("--batch-size", "auto", "--global-batch-size", 8, "--asv-chunk", "auto")
    assert pretrain(study_dir, tmp_path / "auto", *ALONE, "--epochs", 1, *automatic) == 0
    assert (
        "available: --batch-size 8 --asv-chunk 0 --gradient-accumulation-steps 1."
        in capsys.readouterr().err
    )
    tables = [
        np.genfromtxt(tmp_path / name / "metrics.csv", delimiter=",", names=True)
        for name in ("default", "auto")
    ]
    assert tables[0]["train_loss"] == tables[1]["train_loss"]
    recorded = json.loads((tmp_path / "auto" / "run.json").read_text())["options"]
    assert recorded["loop"]["batch_size"] == 8 and recorded["speed"]["asv_chunk"] == 0


@pytest.mark.medium
def test_a_resumed_run_keeps_its_batch(study_dir: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = (*ALONE, "--gradient-accumulation-steps", 2)
    assert pretrain(study_dir, run, *given, "--epochs", 1) == 0
    resumed = (*ALONE, "--batch-size", "auto", "--resume-from", "auto", "--epochs", 2)
    assert pretrain(study_dir, run, *resumed) == 0
    loop = json.loads((run / "run.json").read_text())["options"]["loop"]
    assert (loop["batch_size"], loop["gradient_accumulation_steps"]) == (8, 2)


@pytest.mark.medium
def test_chunks_are_fitted_to_the_steps_of_accumulation_that_are_given(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = LoopOptions(batch_size=4, gradient_accumulation_steps=3)
    options = options_of(study_dir, tmp_path, loop, SpeedOptions(asv_chunk="auto"))
    fitted = automatic(options, pretraining_run)
    assert fitted.loop == loop and fitted.speed.asv_chunk == 0
    assert "UniFrac" not in capsys.readouterr().err


@pytest.mark.medium
def test_automatic_settings_that_contradict_others_are_refused(
    study_dir: Path, tmp_path: Path
) -> None:
    loop = LoopOptions(batch_size="auto", gradient_accumulation_steps=2)
    options = options_of(study_dir, tmp_path, loop, SpeedOptions())
    with pytest.raises(UsageError, match="steps 2 with --batch-size auto; leave one"):
        require_consistent(options)
    with pytest.raises(UsageError, match="2 ranks on a CPU"):
        limit_of(DeviceOptions(device="cpu"), Ranks(world_size=2))
