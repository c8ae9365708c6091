"""Run folders as research objects: `ro-crate-metadata.json`, by the validator of RO-Crates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aam as library
from aam.contract.run_files import CRATE, files_of
from tests.support.commands import aam, pretrain

ROOT = Path(__file__).parents[2]
VALIDATOR = ROOT / ".venv-crate/bin/python"
DIGEST = "a" * 64
LAUNCHES = {
    "podman": {"image": "cpu", "place": "ghcr.io/some/aam:cpu-v1", "digest": f"sha256:{DIGEST}"},
    "apptainer": {"image": "cpu", "place": "/i/cpu.sif", "digest": f"sha256:{DIGEST}"},
}


def train(study_dir: Path, run: Path, *words: object) -> None:
    files = (study_dir / "table.biom", study_dir / "metadata.tsv", "ph")
    given = (*files, "--members", "kernel", "--folds", 2, "--where", "site!=site-1")
    words = (*words, "--output-dir", run)
    assert aam("train", *given, *words) == 0


@pytest.fixture(scope="module")
def run(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("crate") / "run"
    train(study_dir, run)
    return run


def entities(run: Path) -> dict[str, dict[str, Any]]:
    return {e["@id"]: e for e in json.loads((run / CRATE).read_text())["@graph"]}


def named(entity: dict[str, Any], key: str) -> Iterator[str]:
    return (link["@id"] for link in entity[key])


def test_the_crate_has_the_facts_of_the_record(run: Path, study_dir: Path) -> None:
    record, crate = json.loads((run / "run.json").read_text()), entities(run)
    action = crate["#run"]
    assert (action["startTime"], action["endTime"]) == (record["started"], record["finished"])
    assert action["actionStatus"].endswith("/CompletedActionStatus")
    for file in record["inputs"].values():
        of_input = crate[Path(file["path"]).as_uri()]
        assert (of_input["sha256"], of_input["contentSize"]) == (file["sha256"], str(file["bytes"]))
        assert of_input["@id"] in named(action, "object")
    assert crate["#option-folds"]["value"] == "2"
    (software,) = named({"of": [action["instrument"]]}, "of")
    assert crate[software]["softwareVersion"] == record["aam"]
    libraries = {crate[name]["name"]: crate[name]["softwareVersion"]
                 for name in named(crate[software], "softwareRequirements")}  # fmt: skip
    assert libraries == record["versions"]
    written = {name.rstrip("/") for name in named(action, "result")}
    assert written == {"run.json", *record["files"]} - {CRATE}
    assert all((run / name).exists() for name in written)
    assert "containerImage" not in action


def test_the_crate_is_a_file_of_the_run(run: Path, study_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert CRATE in files_of(copy)
    (copy / CRATE).write_text("of an earlier run")
    train(study_dir, copy, "--overwrite")
    assert entities(copy)["./"]["name"] == "aam train: run"
    library.load(copy).save(tmp_path / "saved")
    assert set(named(entities(tmp_path / "saved")["#run"], "result")) <= {
        "run.json", *(f"{name}/" if (copy / name).is_dir() else name for name in files_of(copy))
    }  # fmt: skip


def test_a_run_without_a_crate_gets_one_with_its_report(run: Path, tmp_path: Path) -> None:
    """A run of an earlier version; a folder that cannot take one still has its page."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    record = json.loads((copy / "run.json").read_text())
    record["files"].remove(CRATE)
    (copy / "run.json").write_text(json.dumps(record))
    (copy / CRATE).unlink()
    (copy / CRATE).mkdir()
    assert aam("report", copy) == 0
    (copy / CRATE).rmdir()
    assert aam("report", copy) == 0
    assert CRATE in files_of(copy)
    assert "splits.tsv" in entities(copy)


@pytest.mark.parametrize("engine", LAUNCHES)
def test_the_image_of_a_container(
    engine: str, run: Path, study_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AAM_PLAN", json.dumps({"engine": engine, **LAUNCHES[engine]}))
    files = (study_dir / "table.biom", study_dir / "metadata.tsv", "ph")
    assert aam("evaluate", run, *files, "--output", tmp_path / "run") == 0
    crate = entities(tmp_path / "run")
    image = crate[crate["#run"]["containerImage"]["@id"]]
    assert (image["@type"], image["sha256"]) == ("ContainerImage", DIGEST)
    assert image["identifier"] == LAUNCHES[engine]["place"]
    if engine == "podman":
        assert (image["registry"], image["name"], image["tag"]) == ("ghcr.io", "some/aam", "cpu-v1")
        assert image["additionalType"]["@id"].endswith("#DockerImage")
    else:
        assert image["additionalType"]["@id"].endswith("#SIFImage")
        assert "registry" not in image
    (model,) = (e for e in crate.values() if e.get("description") == "Input --model")
    assert model["@type"] == "Dataset"


@pytest.mark.medium
def test_the_validator_accepts_every_kind_of_run(
    run: Path, study_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train, pretrain, evaluate, and a run in a container; and a crate that lacks something."""
    if not VALIDATOR.exists():
        reason = "make .venv-crate/has-validator installs the validator"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    files = (study_dir / "table.biom", study_dir / "metadata.tsv", "ph")
    assert pretrain(study_dir, tmp_path / "pretrain", "--tree", study_dir / "tree.nwk") == 0
    runs = [run, tmp_path / "pretrain"]
    for name, launch in LAUNCHES.items():
        monkeypatch.setenv("AAM_PLAN", json.dumps({"engine": name, **launch}))
        runs.append(tmp_path / name)
        assert aam("evaluate", run, *files, "--output", runs[-1]) == 0
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "splits.tsv").unlink()

    def validated(*folders: Path) -> tuple[int, str]:
        argv = [VALIDATOR, ROOT / ".ci/validate_crates", *folders]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert validated(*runs) == (0, "")
    status, issues = validated(damaged)
    assert (status, "'splits.tsv'" in issues) == (1, True)
