"""`aam export`: ONNX files compute what `aam predict` and the encoder compute."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.contract.errors import CannotCreate, DataError
from aam.contract.options.device import DeviceOptions
from aam.contract.options.study import TableOptions
from aam.data.study import load_study
from aam.inference.stored_networks import read_networks
from aam.members.kernel import KernelModel
from aam.members.model_file import read_trained
from tests.support.commands import aam, pretrain, read

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def session(path: Path) -> tuple[object, dict[str, object]]:
    made = onnxruntime.InferenceSession(str(path))
    return made, json.loads(made.get_modelmeta().custom_metadata_map["aam"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "args"),
    [
        ("ph", ("--target-transform", "log-zscore", "--output-max", 14.0)),
        ("site", ("--classifier",)),
    ],
)
def test_the_kernel_predicts_a_study(
    study_dir: Path, tmp_path: Path, column: str, args: tuple[object, ...]
) -> None:
    table = study_dir / "table.biom"
    run, out = tmp_path / "run", tmp_path / "onnx"
    given = ("--metadata", study_dir / "metadata.tsv", "--metadata-column", column)
    members = ("--members", "kernel", "--folds", 2, "--rarefy-depth", 0)
    assert aam("train", "--table", table, "--output-dir", run, *given, *members, *args) == 0
    assert aam("export", "--model", run, "--output-dir", out) == 0
    assert aam("predict", "--model", run, "--table", table, "--output", tmp_path / "p.tsv") == 0
    kernel, facts = session(out / "kernel.onnx")
    assert facts["column"] == column
    loaded = read_trained(run, DeviceOptions())
    model = loaded.models["kernel"]
    assert isinstance(model, KernelModel)
    assert (model.summands.clades is not None) == (column == "site")  # Both forms are exported.
    study = load_study(TableOptions(table=table), max_bp=loaded.max_bp)
    inputs = {
        "tokens": study.tokens_FL,
        "counts": study.table.counts[np.arange(36)].toarray().astype(np.float32),
    }
    found = kernel.run(None, inputs)[0]
    predicted = read(tmp_path / "p.tsv")
    columns = [f"kernel_p_{name}" for name in facts["classes"]] or ["kernel_predicted"]
    np.testing.assert_allclose(found, predicted[columns].to_numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.medium
def test_the_encoder_of_any_number_of_asvs(study_dir: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "onnx"
    assert pretrain(study_dir, run, "--penalty", 0) == 0
    assert aam("export", "--model", run, "--output-dir", out) == 0
    encoder, facts = session(out / "asv_encoder.onnx")
    study = load_study(TableOptions(table=study_dir / "table.biom"), max_bp=facts["length"])
    network = read_networks(run)[0].build().eval()
    (expected,) = network.encode_all([torch.from_numpy(study.tokens_FL)])
    for number in (1, 50):
        found = encoder.run(None, {"tokens": study.tokens_FL[:number]})[0]
        np.testing.assert_allclose(found, expected[:number].numpy(), rtol=1e-4, atol=1e-5)
    assert aam("export", "--model", run, "--output-dir", out) == CannotCreate.status


@pytest.mark.medium
def test_a_forest_alone_is_refused(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--metadata", study_dir / "metadata.tsv", "--metadata-column", "ph")
    table = ("--table", study_dir / "table.biom", "--rarefy-depth", 0)
    members = ("--members", "forest", "--folds", 2)
    assert aam("train", *table, *given, *members, "--output-dir", tmp_path / "run") == 0
    out = ("--output-dir", tmp_path / "onnx")
    assert aam("export", "--model", tmp_path / "run", *out) == DataError.status
    assert "Nothing that can be exported: " in capsys.readouterr().err
