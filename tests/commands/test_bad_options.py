"""Errors of options that contradict each other, and of checkpoints of another command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from aam.contract.options.command_line import parse
from aam.network.inference.stored_networks import FORMAT
from aam.network.training.checkpoints import read_tensors, write_tensors
from tests.support.bench import DATA, NO_INPUT, UNAVAILABLE, USAGE, Bench, Refused
from tests.support.commands import aam

# Values of an option


def test_values_are_separated_by_blanks_or_commas() -> None:
    columns, words = ("--categorical-columns", "a"), ("low", "mid", "high")
    for members in (["kernel", "forest"], ["kernel,forest"], ["kernel,", "forest"]):
        for ordinal in (words, [",".join(words)], [", ".join(words)], ["low,", "mid,", "high"]):
            given = ("--table", "t", "--metadata", "m", "--metadata-column", "x", *columns)
            given = ("train", *given, "--output-dir", "o", "--members", *members)
            options = parse([*given, "--ordinal", *ordinal]).build()
            assert options.members == ("kernel", "forest")
            assert options.target.levels == words
    assert parse([*given, "--quantiles", "0.1,0.5", "0.9"]).build().quantiles == (0.1, 0.5, 0.9)
    assert parse([*given, "--members", "transformer"]).build().members[-1] == "transformer"


def test_an_option_that_is_given_twice_is_named(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--table", bench.good / "table.biom", "--metadata", bench.good / "metadata.tsv")
    assert aam("inspect", *given, "--metadata-column", "site", "--metadata-column", "ph") == 0
    shown = capsys.readouterr().err
    assert "--metadata-column is given 2 times: only the last value counts" in shown
    assert "--table" not in shown
    # All tables but one would be lost.
    assert aam("inspect", *given, "--table", bench.good / "table.biom") == USAGE
    shown = " ".join(capsys.readouterr().err.split())
    assert "Several files as --table" in shown and "aam prepare --table A --table B" in shown


def test_a_variable_of_slurm_that_is_no_number(
    bench: Bench, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PROCID", "LOCALID", "JOB_ID", "NODEID", "STEP_ID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "x")
    refused(bench.train(), USAGE, "SLURM_STEP_NUM_TASKS='x'")


# Models and checkpoints of another kind


def test_models_of_another_kind(
    bench: Bench, trained: Path, pretrained: Path, refused: Refused
) -> None:
    def predict(model: Path) -> int:
        given = ("--table", bench.good / "table.biom", "--output", bench.out)
        return aam("predict", *given, "--model", model)

    refused(predict(pretrained), DATA, "has no target", "use `aam train` first")
    refused(predict(bench.good), NO_INPUT, "No model", f"'{bench.good}' has no model/model.json")
    refused(predict(bench.good / "metadata.tsv"), NO_INPUT, "is a file, and a model is a folder")
    begun = bench.work / "begun"
    shutil.copytree(trained / "checkpoints", begun / "checkpoints")
    refused(predict(begun), NO_INPUT, "The run has no model", "resume the run")
    foreign = bench.work / "foreign"
    foreign.mkdir()
    (foreign / "model.json").write_text('{"layers": [1, 2]}')
    refused(predict(foreign), DATA, "Not a model of this program", "has no 'format'")


def test_checkpoints_of_another_kind(bench: Bench, trained: Path, refused: Refused) -> None:
    best = trained / "checkpoints/best.ckpt"

    def resume(path: Path) -> int:
        return bench.train("--resume-from", path)

    save_file({"weight": torch.zeros(2)}, bench.work / "other.safetensors")
    refused(resume(bench.work / "other.safetensors"), DATA, "a safetensors file of another program")
    write_tensors(bench.work / "other.ckpt", {"weight": torch.zeros(2)})
    refused(resume(bench.work / "other.ckpt"), DATA, "Not a checkpoint of this program")
    refused(resume(bench.good / "metadata.tsv"), DATA, "cannot be read", "metadata.tsv")
    content = read_tensors(best)
    content["aam"]["format"], content["aam"]["version"] = FORMAT + 1, "99.1"
    write_tensors(bench.work / "newer.ckpt", content)
    phrases = ("written by a newer version", "aam 99.1", f"format {FORMAT + 1}")
    refused(resume(bench.work / "newer.ckpt"), DATA, *phrases)
    strange = read_tensors(best)
    name = next(name for name in strange["state_dict"] if name.endswith("weight"))
    strange["state_dict"]["network.stranger"] = strange["state_dict"].pop(name)
    write_tensors(bench.work / "strange.ckpt", strange)
    invalid = ("The checkpoint has invalid content", "1 more do not fit the config")
    refused(resume(bench.work / "strange.ckpt"), DATA, *invalid)


# Options that contradict each other, and devices that are not there


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [
        ("pretrain", "--unifrac-matrix MATRIX", "m.tsv with --tree; leave one"),
        ("pretrain", "--penalty 0 --nuc-penalty 0", "Nothing to learn"),
        ("pretrain", "--embedding-dim 9", "--embedding-dim 9 --attention-heads 2"),
        ("train", "--freeze-base", "--freeze-base without --pretrained-encoder"),
        ("train", "--best-metric accuracy", "--best-metric accuracy without --classifier; add"),
        ("train", "--members kernel --pretrained-encoder MATRIX", "without --members transformer"),
        ("train", "--members kernel --resume-from MATRIX", "--resume-from"),
        ("train", "--metadata-column site --classifier --best-metric r2", "--best-metric r2"),
        ("train", "--test-size 1", "--test-size 1.0"),
        ("train", "--where site", "COLUMN=VALUE"),
        ("train", "--folds 0", "--folds 0"),
        ("train", "--quantiles 0 0.5", "--quantiles 0.0; give more than 0 and less than 1"),
        ("train", "--epochs 0", "--epochs 0; give 1 or more for --epochs"),
        ("train", "--penalty nan", "--penalty nan"),
    ],
)
def test_options_that_contradict(
    bench: Bench, refused: Refused, command: str, args: str, message: str
) -> None:
    matrix = bench.text("m.tsv", "")
    given = [str(matrix) if word == "MATRIX" else word for word in args.split()]
    refused(getattr(bench, command)(*given), USAGE, message)


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2"}  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "variables", "evidence"),
    [
        ("--processes 2 --distributed", {}, "--processes 2, with --members kernel forest"),
        ("--processes 2 --metadata-column ph,site", {}, "--processes 2"),
        ("--members kernel", TORCHRUN, "started by torchrun or srun, with --members kernel"),
    ],
)
def test_kernel_and_forest_train_in_one_process(
    bench: Bench,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
    flags: str,
    variables: dict[str, str],
    evidence: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    study = ("--table", bench.good / "table.biom", "--metadata", bench.good / "metadata.tsv")
    given = (*study, "--metadata-column", "ph", "--output-dir", bench.out, *flags.split())
    phrases = (evidence, "start one process, or add transformer to --members")
    refused(
        aam("train", *given),
        USAGE,
        "Several processes for models that train in one process",
        *phrases,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(bench: Bench, refused: Refused) -> None:
    phrases = ("No GPU", "--device cuda", "--device auto or cpu")
    refused(bench.pretrain("--device", "cuda"), UNAVAILABLE, *phrases)
