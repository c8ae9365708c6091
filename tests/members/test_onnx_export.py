"""`aam export`: ONNX files compute what the encoder computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aam.contract.errors import CannotCreate
from aam.contract.options.groups import TableOptions
from aam.data.study import load_study
from aam.network.inference.stored_networks import read_networks
from tests.support.commands import aam, pretrain

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def session(path: Path) -> tuple[Any, dict[str, Any]]:
    made = onnxruntime.InferenceSession(str(path))
    return made, json.loads(made.get_modelmeta().custom_metadata_map["aam"])


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
