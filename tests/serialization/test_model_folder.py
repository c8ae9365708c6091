"""Model folders: recognized by their content, atomic, and refused where they are not as written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aam.contract.errors import MissingInput
from aam.serialization import model_folder
from aam.serialization.model_folder import State
from tests.support.commands import aam, train
from tests.support.hostile_checkpoints import files
from tests.support.models import Editable, rewrite

DATA, NO_INPUT, SOFTWARE = 65, 66, 70

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, with a small profile so that its model is small."""
    folder = tmp_path_factory.mktemp("run")
    assert train(study_dir, folder, "--profile-features", 16) == 0
    return folder


@pytest.fixture
def model(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run / "model", tmp_path / "copy"))


@pytest.fixture
def predict(study_dir: Path, tmp_path: Path) -> Callable[[Path], int]:
    table = ("--table", study_dir / "table.biom", "--device", "cpu")
    output = ("--output", tmp_path / "p.tsv", "--overwrite")
    return lambda path: aam("predict", *table, *output, "--model", path)


def sentence(capsys: Capture) -> str:
    """Return the only line of an error, without a traceback."""
    lines = capsys.readouterr().err.splitlines()
    [found] = [line for line in lines if line.startswith("aam: ")]
    assert found == lines[-1]
    return found


def test_values_and_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    arrays = {
        "a/b": np.arange(6.0).reshape(2, 3).T,
        "none": np.empty((0, 3), np.float32),
        "scalar": np.array(-5),
        "bytes": np.array([0, 255], np.uint8),
    }
    settings = {"gamma": 1 / 3, "names": ["ä", ""], "none": None, "deep": {"x": [1, 2**40]}}
    members = {"first": State(settings, arrays), "second": State({}, {})}
    model_folder.write(tmp_path / "m", "train", members, {"fact": [True]}, {"other": arrays})
    found = model_folder.read(tmp_path / "m")
    assert (found.command, found.facts) == ("train", {"fact": [True]})
    assert found.members == {"first": settings, "second": {}}
    for part in ("first", "other"):
        read = found.arrays(part)
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            assert read[name].dtype == array.dtype
            np.testing.assert_array_equal(read[name], array)
    assert found.state("second") == State({}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_model_may_have_any_name(
    run: Path, tmp_path: Path, predict: Callable[[Path], int]
) -> None:
    for number, source in enumerate((run, run / "model")):
        for name in ("model.json", "checkpoints", "x.ckpt"):
            copy = Path(shutil.copytree(source, tmp_path / str(number) / name))
            assert predict(copy) == 0


def test_a_write_that_fails_leaves_the_previous_model(run: Path, model: Path) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    wrong = {"transformer": State({"setting": object()}, {})}
    with pytest.raises(TypeError):
        model_folder.write(model, "train", wrong)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert [path.name for path in model.parent.iterdir()] == [model.name]


def killed(model: Path, place: Any, name: str, last: Callable[..., bool]) -> None:
    """Write another model in a process that is killed at the `last` call of a function."""
    child = os.fork()
    if not child:
        real = getattr(place, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if last(*args):
                os._exit(9)
            return real(*args, **kwargs)

        setattr(place, name, call)
        model_folder.write(model, "train", {"other": State({}, {"a": np.zeros(9)})})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_killed_writer_leaves_the_previous_model(model: Path) -> None:
    before = model_folder.read(model)
    killed(model, Path, "write_text", lambda *_: True)
    assert model_folder.read(model) == before
    model_folder.write(model, "train", {"other": State({}, {"a": np.zeros(9)})})
    assert list(model_folder.read(model).members) == ["other"]
    assert [path.name for path in model.parent.iterdir()] == [model.name]


def test_a_writer_killed_between_its_renames_loses_neither_model(model: Path) -> None:
    """The old folder has been moved away, and the new one is not at its place yet."""
    killed(model, os, "rename", lambda source, target: target == model)
    assert not model.exists()
    with pytest.raises(TypeError):
        model_folder.write(model, "train", {"wrong": State({"setting": object()}, {})})
    assert list(model_folder.read(model).members) == ["other"]
    assert [path.name for path in model.parent.iterdir()] == [model.name]


def test_files_that_are_not_as_they_were_written(
    model: Path, predict: Callable[[Path], int], capsys: Capture
) -> None:
    file = model / "transformer.safetensors"
    good = file.read_bytes()
    for name, content in files(good):
        file.write_bytes(content)
        assert predict(model) == DATA, name
        found = sentence(capsys)
        assert "The model is damaged: " in found
        assert str(file) in found
        assert ("SHA-256 differs" if len(content) == len(good) else f"{len(good)} that") in found
    file.unlink()
    assert predict(model) == DATA
    assert f"'{file}' is missing" in sentence(capsys)
    with file.open("wb") as stream:  # a hole of 8 TiB
        stream.truncate(1 << 43)
    assert predict(model) == DATA
    assert f"has {1 << 43} bytes" in sentence(capsys)
    file.write_bytes(good)
    assert predict(model) == 0


def test_hostile_files_with_right_checksums(
    model: Path, predict: Callable[[Path], int], capsys: Capture
) -> None:
    """Whoever writes such a file can also write its size and SHA-256."""
    file, header = model / "transformer.safetensors", model / "model.json"
    good, before = file.read_bytes(), json.loads(header.read_text())
    for name, content in files(good):
        if name in ("no-metadata", "metadata-none", "middle-zeroed"):
            continue  # these are whole files of other values
        file.write_bytes(content)
        sha = hashlib.sha256(content).hexdigest()
        described = {"bytes": len(content), "sha256": sha}
        changed = before | {"files": before["files"] | {"transformer": described}}
        del changed["checksum"]
        text = json.dumps(changed | {"checksum": model_folder.checksum(changed)})
        header.write_text(text)
        assert predict(model) == DATA, name
        assert "The model is damaged: " in sentence(capsys)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(column="other"),
        lambda c: c.update(checksum="0"),
    ],
)
def test_an_edited_header(
    model: Path, predict: Callable[[Path], int], capsys: Capture, change: Callable[[Any], None]
) -> None:
    content = json.loads((model / "model.json").read_text())
    change(content)
    (model / "model.json").write_text(json.dumps(content))
    assert predict(model) == DATA
    assert "model.json' was changed: its checksum differs" in sentence(capsys)


@pytest.mark.parametrize("text", ["", "[]", "[" * 10**5, '{"format": 1}', "9" * 10**5])
def test_a_header_that_is_none(
    model: Path, predict: Callable[[Path], int], capsys: Capture, text: str
) -> None:
    (model / "model.json").write_text(text)
    assert predict(model) == DATA
    assert str(model / "model.json") in sentence(capsys)


def shape(**values: object) -> Callable[[Editable], None]:
    """Return a change of the shape of the network."""
    return lambda c: c.settings["transformer"]["networks"][0]["shape"].update(values)


def weight(change: Callable[[Any], Any]) -> Callable[[Editable], None]:
    """Return a change of the largest weight of the network, which has several rows."""

    def apply(content: Editable) -> None:
        arrays = content.arrays["transformer"]
        name = max(arrays, key=lambda name: arrays[name].size)
        arrays[name] = change(arrays[name].copy())

    return apply


@pytest.mark.parametrize(
    "change",
    [
        shape(embedding_dim=2**62),
        shape(attention_layers=1_000_000),
        shape(embedding_dim="8"),
        weight(lambda array: array[:1]),
        lambda c: c.arrays.pop("transformer"),
        lambda c: c.settings["transformer"]["networks"][0].update(target=None),
        lambda c: c.settings["transformer"]["networks"][0]["plan"].update(rarefy_depth=-1),
    ],
)
def test_networks_that_contradict_themselves(
    run: Path,
    tmp_path: Path,
    predict: Callable[[Path], int],
    capsys: Capture,
    change: Callable[[Editable], None],
) -> None:
    assert predict(rewrite(run, tmp_path / "changed", change)) == DATA
    assert sentence(capsys)


def test_an_unknown_member_and_networks_of_different_runs(
    run: Path, tmp_path: Path, predict: Callable[[Path], int], capsys: Capture
) -> None:
    def twice(column: str) -> Callable[[Editable], None]:
        def change(content: Editable) -> None:
            (network,) = content.settings["transformer"]["networks"]
            other = json.loads(json.dumps(network))
            other["target"]["column"] = column
            content.settings["transformer"]["networks"] = [network, other]
            arrays = content.arrays["transformer"]
            arrays |= {f"2/{name[2:]}": array for name, array in dict(arrays).items()}

        return change

    unknown = rewrite(run, tmp_path / "unknown", lambda c: c.settings.update(boosting={}))
    assert predict(unknown) == DATA
    assert "'boosting', known are kernel, forest, transformer" in sentence(capsys)
    assert predict(rewrite(run, tmp_path / "same", twice("ph"))) == 0
    assert "mean of 2 networks" in capsys.readouterr().err
    assert predict(rewrite(run, tmp_path / "other", twice("depth"))) == DATA
    assert "The networks come from different runs: " in sentence(capsys)


def test_predictions_that_are_not_finite(
    run: Path, study_dir: Path, tmp_path: Path, predict: Callable[[Path], int], capsys: Capture
) -> None:
    """Finite weights that overflow: no table of empty cells, whatever is written."""

    def change(content: Editable) -> None:
        arrays = content.arrays["transformer"]
        name = "1/encoder.samples.out.weight"
        arrays[name] = np.full_like(arrays[name], 3e38)

    model = rewrite(run, tmp_path / "changed", change)
    assert predict(model) == SOFTWARE
    assert "embeddings are not finite numbers: samples 36 (" in capsys.readouterr().err
    table = ("--table", study_dir / "table.biom", "--device", "cpu", "--model", model)
    assert aam("embed", *table, "--output-dir", tmp_path / "e") == SOFTWARE
    assert not (tmp_path / "p.tsv").exists()
    assert not (tmp_path / "e").exists()


def test_paths_that_are_no_model(study_dir: Path, tmp_path: Path, capsys: Capture) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    args = ("--table", study_dir / "table.biom", "--output-dir", tmp_path / "out")
    for path in (tmp_path / "fifo", tmp_path / "folder", tmp_path / "none", Path("/dev/zero")):
        assert aam("embed", *args, "--model", path) == NO_INPUT
        assert f"'{path}" in capsys.readouterr().err
    (tmp_path / "folder/model.json").mkdir()
    with pytest.raises(MissingInput):
        model_folder.read(tmp_path / "folder")
