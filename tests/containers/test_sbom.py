"""SBOM of an image: valid SPDX 2.3, every package once, licences as the packages state them."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PathDistribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from launcher import cli
from launcher.images import index, sbom
from tests.support.engines import ROOT
from tests.support.scripts import load_script

LABELS = {
    "org.aam.name": "cpu",
    "org.aam.version": "0.1.0",
    "org.aam.packages": f"sha256:{'12' * 32}",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(ROOT / "containers/sbom.py")


def validated(path: Path) -> None:
    """Validate a document by the parser and the rules of the SPDX project."""
    pytest.importorskip("spdx_tools")
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    problems = validate_full_spdx_document(parse_file(str(path)))
    assert [problem.validation_message for problem in problems] == []


@pytest.mark.medium
def test_the_sbom_of_this_machine_is_valid_spdx(script: ModuleType, tmp_path: Path) -> None:
    """It describes the image that it runs in; here that is this environment."""
    if shutil.which("dpkg-query") is None:
        pytest.skip("not a Debian")
    lock = (ROOT / "containers/locks/cpu.txt").read_text()
    document: dict[str, Any] = script.document(LABELS, lock)
    path = tmp_path / "cpu.spdx.json"
    path.write_text(json.dumps(document))
    validated(path)
    names = {p["name"] for p in document["packages"] if p["SPDXID"].startswith("SPDXRef-python-")}
    assert names == {script._normal(d.metadata["Name"]) for d in distributions()}
    debian = {p["name"]: p for p in document["packages"] if "SPDXRef-debian-" in p["SPDXID"]}
    assert debian["dpkg"]["externalRefs"][0]["referenceLocator"].startswith("pkg:deb/debian/dpkg@")
    contained = [r for r in document["relationships"] if r["relationshipType"] == "CONTAINS"]
    assert len(contained) == len(document["packages"]) - 1


@pytest.mark.parametrize(
    ("metadata", "spdx", "comment"),
    [
        ("License-Expression: MIT AND Unicode-3.0", "MIT AND Unicode-3.0", ""),
        ("License: Apache License 2.0", "Apache-2.0", ""),
        ("License: MPL-2.0 AND MIT", "MPL-2.0 AND MIT", ""),
        ("License: see LICENSE\nClassifier: License :: OSI Approved :: MIT License", "MIT", ""),
        ("Classifier: License :: OSI Approved :: BSD License", "NOASSERTION", "BSD License"),
        ("License: BSD", "NOASSERTION", "BSD"),
        ("Summary: none", "NOASSERTION", ""),
    ],
)
def test_licences_are_spdx_only_where_they_are_unambiguous(
    script: ModuleType, tmp_path: Path, metadata: str, spdx: str, comment: str
) -> None:
    folder = tmp_path / "a-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: a\nVersion: 1\n{metadata}\n")
    assert script.licence_of(PathDistribution(folder)) == (spdx, comment)


def test_a_wheel_that_the_lock_has_alone_has_its_hash(script: ModuleType) -> None:
    (name, version), *_ = [(d.metadata["Name"], d.version) for d in distributions()]
    pin = f"{name}=={version} \\\n    --hash=sha256:{'1' * 64}"
    pins = {script._normal(name): [{"algorithm": "SHA256", "checksumValue": "1" * 64}]}
    for lock, expected in ((pin, pins), (f"{pin} \\\n    --hash=sha256:{'2' * 64}", {})):
        packages = list(script.python_packages(lock))
        assert {p["name"]: p["checksums"] for p in packages if "checksums" in p} == expected


# --- stored beside the image


def test_of_two_installations_of_a_package_the_one_that_python_imports_is_listed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a virtual environment above the packages of the system."""
    for folder, version in (("first", "2.0"), ("second", "1.0")):
        metadata = tmp_path / folder / "Twice.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: Twice\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path / "second")
    monkeypatch.syspath_prepend(tmp_path / "first")
    packages = script.document(LABELS, "")["packages"]
    assert [p["versionInfo"] for p in packages if p["name"] == "twice"] == ["2.0"]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine in which every program prints `document`, as that in an image does."""
    path = tmp_path / "bin/apptainer"
    path.parent.mkdir()
    version = "echo apptainer version 1.4.5"
    path.write_text(f"#!/bin/sh\n[ $1 = --version ] && {version} || cat {tmp_path}/document\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return tmp_path / "document"


@pytest.mark.medium
def test_it_is_stored_beside_the_image_and_made_again_for_another(
    tmp_path: Path, program: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"

    def printed() -> Any:
        assert cli.main([f"--image-dir={images}", "images", "sbom", "cpu"]) == 0
        return json.loads(capsys.readouterr().out)

    program.write_text(json.dumps(script.document(LABELS, "")))
    index.write(images, "cpu", "sif", {"sha256": "34" * 32})
    document = printed()
    assert document["packages"][0]["checksums"][0]["checksumValue"] == "34" * 32
    assert document["documentNamespace"].endswith(f"aam-cpu-0.1.0-{'34' * 32}")
    validated(sbom.path_of(images, "cpu", "sif"))
    program.unlink()
    assert printed() == document  # as stored; the image is not started
    index.write(images, "cpu", "sif", {"sha256": "56" * 32})
    assert cli.main([f"--image-dir={images}", "images", "sbom", "cpu"]) == 69
    assert "The image makes no SBOM" in capsys.readouterr().err
    assert cli.main([f"--image-dir={images}", "images", "rm", "cpu"]) == 0
    assert not sbom.path_of(images, "cpu", "sif").exists()
    assert cli.main([f"--image-dir={images}", "images", "sbom", "cpu"]) == 66
