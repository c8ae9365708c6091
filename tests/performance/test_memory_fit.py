"""`--batch-size auto` and `--asv-chunk auto`: the largest settings that fit into memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from aam.contract.errors import UsageError
from aam.contract.options.commands.pretrain import Pretrain
from aam.contract.options.conditions import require_consistent
from aam.contract.options.device import DeviceOptions, SpeedOptions
from aam.contract.options.study import PhylogenyOptions
from aam.contract.options.training import LoopOptions, ModelOptions
from aam.distributed.environment import Ranks
from aam.performance.fit import MemoryLimit, automatic, choose, limit_of, needed, with_chunk
from aam.performance.memory import Parallel, StepSettings, TrainingRun, pretraining_run
from tests.support.commands import pretrain
from tests.support.option_groups import option_groups

pytestmark = pytest.mark.medium

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


def test_what_fits_nowhere_is_refused(run: TrainingRun) -> None:
    with pytest.raises(UsageError, match=r"--batch-size 1, 1\.0 MiB of the GPU"):
        choose(run, StepSettings(GLOBAL, SpeedOptions()), MemoryLimit(2**20), divide=True)
    with pytest.raises(UsageError, match="--batch-size 12"):
        choose(run, StepSettings(GLOBAL, SpeedOptions()), MemoryLimit(2**20), divide=False)


def test_more_ranks_than_samples_are_refused(run: TrainingRun) -> None:
    settings = StepSettings(GLOBAL, SpeedOptions(), Parallel(32, fsdp=False))
    with pytest.raises(UsageError, match="12 samples, 32 ranks; give a larger --global-batch-size"):
        choose(run, settings, MemoryLimit(2**40), divide=True)


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


def test_a_resumed_run_keeps_its_batch(study_dir: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = (*ALONE, "--gradient-accumulation-steps", 2)
    assert pretrain(study_dir, run, *given, "--epochs", 1) == 0
    resumed = (*ALONE, "--batch-size", "auto", "--resume-from", "auto", "--epochs", 2)
    assert pretrain(study_dir, run, *resumed) == 0
    loop = json.loads((run / "run.json").read_text())["options"]["loop"]
    assert (loop["batch_size"], loop["gradient_accumulation_steps"]) == (8, 2)


def test_chunks_are_fitted_to_the_steps_of_accumulation_that_are_given(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = LoopOptions(batch_size=4, gradient_accumulation_steps=3)
    options = options_of(study_dir, tmp_path, loop, SpeedOptions(asv_chunk="auto"))
    fitted = automatic(options, pretraining_run)
    assert fitted.loop == loop and fitted.speed.asv_chunk == 0
    assert "UniFrac" not in capsys.readouterr().err


def test_automatic_settings_that_contradict_others_are_refused(
    study_dir: Path, tmp_path: Path
) -> None:
    loop = LoopOptions(batch_size="auto", gradient_accumulation_steps=2)
    options = options_of(study_dir, tmp_path, loop, SpeedOptions())
    with pytest.raises(UsageError, match="steps 2 with --batch-size auto; leave one"):
        require_consistent(options)
    with pytest.raises(UsageError, match="2 ranks on a CPU"):
        limit_of(DeviceOptions(device="cpu"), Ranks(world_size=2))
