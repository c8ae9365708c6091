"""Equal results of one study natively, in the SIF and in podman."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.support.commands import aam, read
from tests.support.engines import LAUNCH, USER, Engines
from tests.support.images import cpu_sif, podman_image, workshop

pytestmark = [pytest.mark.container, pytest.mark.slow]
TINY = (
    *("--embedding-dim", "16", "--attention-heads", "2", "--attention-layers", "1"),
    *("--epochs", "2", "--batch-size", "8", "--device", "cpu", "--seed", "3"),
)


@pytest.fixture(scope="module")
def place(study_dir: Path) -> Iterator[Path]:
    """A folder of the test user with a study and a model that was trained natively."""
    folder = Path("/var/tmp") / f"aam-equal-{study_dir.parent.name}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(study_dir, folder / "study")
    table = ["--table", f"{folder}/study/table.biom", "--tree", f"{folder}/study/tree.nwk"]
    labels = ["--metadata", f"{folder}/study/metadata.tsv", "--metadata-column", "ph"]
    model = ["--members", "transformer", *TINY, *table, *labels, "--output-dir", f"{folder}/model"]
    new = ["--model", f"{folder}/model", *table[:2], "--output", f"{folder}/native.tsv"]
    assert aam("pretrain", *TINY, *table, "--output-dir", f"{folder}/native") == 0
    assert aam("train", *model) == 0
    assert aam("predict", *new, "--device", "cpu") == 0
    subprocess.run(["chown", "-R", f"{USER}:", str(folder)], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("engine", ["apptainer", pytest.param("podman", marks=pytest.mark.nightly)])
def test_pretrain_and_predict_are_those_of_the_native_run(place: Path, engine: str) -> None:
    engines, user = (podman_image("cpu"), "root") if engine == "podman" else (workshop(), USER)
    if engine == "apptainer":
        cpu_sif()

    def launch(engines: Engines, *args: str) -> None:
        own = ["env", "OMP_NUM_THREADS=1", *LAUNCH, "--image", "cpu",
               "--runtime", engine]  # fmt: skip
        done = engines.run([*own, *args], user=user, cwd=engines.folder, timeout=600)
        assert done.returncode == 0, done.stderr

    out = place / engine
    table = ["--table", f"{place}/study/table.biom", "--tree", f"{place}/study/tree.nwk"]
    launch(engines, "pretrain", *TINY, *table, "--output-dir", str(out))
    launch(engines, "predict", "--model", f"{place}/model", *table[:2],
           "--output", f"{out}.tsv", "--device", "cpu")  # fmt: skip
    ours, theirs = (read(folder / "metrics.csv") for folder in (out, place / "native"))
    timed = [name for name in ours if "second" in name or "time" in name]
    compare(ours.drop(columns=timed), theirs.drop(columns=timed))
    compare(read(out.with_suffix(".tsv")), read(place / "native.tsv"))


def compare(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    assert len(ours) > 0
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-5, atol=1e-5)
