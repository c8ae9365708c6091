"""The blocks of docs/python.md run as they are, from top to bottom."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import sklearn

from aam.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    before = set(plt.get_fignums())
    # The page enables metadata routing, which the context undoes.
    with sklearn.config_context():
        for language, block in BLOCK.findall(PAGE.read_text()):
            if language == "python":
                exec(compile(block, PAGE, "exec"), names)
                continue
            for line in block.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "aam"
                assert main(arguments) == 0
    assert names["predictions"].index.equals(names["frame"].index[names["test"]])
    assert (
        np.corrcoef(names["predictions"].predicted, names["metadata"].ph[names["test"]])[0, 1] > 0.5
    )
    assert np.isfinite(names["scores"]).all()
    drawn = set(plt.get_fignums()) - before
    axes_of = {
        axes.get_title("left"): axes for axes in (plt.figure(number).axes[0] for number in drawn)
    }
    assert {
        "Predicted against true", "Most important ASVs", "Would more samples help?",
        "Sequences (kernel)",
    } < {*axes_of}  # fmt: skip
    assert len(axes_of) == 6  # with a waterfall and a beeswarm
    # The name of the groups.
    assert "subject" in axes_of["Would more samples help?"].get_xlabel()
    assert names["regressor"].scores_["verdict"]["outcome"] == "better"
    parts = names["effects"].groupby("sample").effect.sum()
    assert np.allclose(parts, names["predictions"].predicted.loc[parts.index])
    assert "taxon" in names["asvs"]
    assert "kernel" in names["tables"]["Difference from ensemble"].index
    assert names["samples"].groupby(["study", "disease"]).ngroups == 6
    assert tuple(names["joined"].ids()) == tuple(names["samples"].index)
    assert set(names["ordered"].predict(names["frame"])) <= {"low", "middle", "high"}
    for name in ("ph.html", "compared.html", "runs/ph/scores.json"):
        assert (tmp_path / name).is_file()
    assert (tmp_path / "onnx" / "asv_encoder.onnx").is_file()
    plt.close("all")
