"""A made-up engine: registered by one entry, it works everywhere without another change."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher import cli, config
from launcher.engines import ENGINES
from launcher.engines.engine import Engine, program
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree
from launcher.plan.assembly import Plan
from tests.support.launches import engine


class Barge(Engine):
    """An engine with a storage of its own."""

    name = "barge"
    traits = EngineTraits(image_format="barge", hidden=("BARGE_*",), passed=("BARGE_CACHE",))

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        return EngineFact(self.name, path, traits=self.traits)

    def command(self, plan: Plan) -> tuple[str, ...]:
        assert plan.place is not None
        mounts = (f"--load={m.source}:{m.target}:{'rw' if m.writable else 'ro'}"
                  for m in plan.mounts)  # fmt: skip
        return (plan.program, "sail", *mounts, plan.place, *program(plan))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with the engine on PATH, an image in its storage, and a study."""
    engine(tmp_path, "barge", "barge version 7.1")
    (tmp_path / "t.biom").touch()
    held = {"barge": {"reference": "aam:cpu", "id": "b1", "digest": "sha256:12"}}
    (tmp_path / "images.json").write_text(json.dumps({"cpu": held}))
    for name, value in {"PATH": str(tmp_path), "HOME": str(tmp_path), "BARGE_ROOT": "1",
                        "BARGE_CACHE": "2", "AAM_IMAGE_DIR": str(tmp_path)}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(ENGINES, "barge", Barge())
    return tmp_path


RUN = ("pretrain", "--table", "t.biom", "--output-dir", "out", "--device", "cpu")


def test_detection_and_doctor(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"{place}/barge 7.1" in printed


@pytest.mark.parametrize("own", [(), ("--runtime", "barge")])
def test_plan_and_explanation(
    place: Path, own: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", "--json", *own, *RUN]) == 0
    printed = json.loads(capsys.readouterr().out)
    plan = printed["plan"]
    assert (plan["engine"], plan["place"], plan["digest"]) == ("barge", "b1", "sha256:12")
    assert "BARGE_ROOT" in plan["unset"]
    assert "BARGE_CACHE" not in plan["unset"]
    assert any(mount["target"] == "/dev/shm" for mount in plan["mounts"])
    assert cli.main(["explain", *own, *RUN]) == 0
    printed = capsys.readouterr().out
    assert f"{place}/barge sail" in printed


def test_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--dry-run", *RUN]) == 0
    printed = capsys.readouterr().out
    assert f"--load={place}/t.biom:{place}/t.biom:ro" in printed
    assert "-u BARGE_ROOT" in printed
    assert " b1 /usr/bin/env " in printed
    assert printed.rstrip().endswith(f"aam pretrain --table {place}/t.biom "
                                  f"--output-dir {place}/out --device cpu")  # fmt: skip


def test_choices_and_messages(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "barge" in config.runtimes()
    assert cli.main(["--runtime", "bargee", *RUN]) == 78
    assert "did you mean 'barge'?" in capsys.readouterr().err
    os.unlink(place / "barge")
    assert cli.main(["--runtime", "barge", *RUN]) == 69
    assert "no barge on PATH" in capsys.readouterr().err


def test_images_that_it_cannot_build(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["images", "build", "cpu"]) == 69
    assert "none of apptainer, singularity, podman, docker on PATH" in capsys.readouterr().err
    assert cli.main(["images", "verify", "cpu", "--no-test"]) == 69
    assert "No engine for images of this format: 'barge'" in capsys.readouterr().err


ENGINE_NAMES = re.compile(r"apptainer|singularity|podman|docker", re.IGNORECASE)
VENDOR_NAMES = re.compile(
    r"(?<![a-z])(?:amd(?!64)|nvidia|intel|rocm|cuda|hip|nccl|rccl|nv)(?![a-z])", re.IGNORECASE
)
DATA = (
    "launcher/images/registry.py",  # Docker's registry protocol, which every engine uses
    ".Dockerfile",
    "NCCL_*",  # patterns of variables that ranks of any vendor need
    "RCCL_*",
    "NCCL_SOCKET_IFNAME",  # variables by which NCCL and RCCL take interfaces and plugin alike
    "NCCL_NET_PLUGIN",
    "/containers/rocm63.sif",  # image of the shipped scripts of the site cosmos
)


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (ENGINE_NAMES, ("launcher/engines/",)),
        (VENDOR_NAMES, ("launcher/gpus/", "launcher/engines/")),
    ],
    ids=["engine", "vendor"],
)
def test_no_module_outside_of_its_registry_names_one(
    names: re.Pattern[str], folders: tuple[str, ...]
) -> None:
    root = Path(cli.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        place = str(path.relative_to(root.parent))
        if place.startswith((*folders, *DATA)):
            continue
        module = ast.parse(path.read_text())
        strings = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
        for node in ast.walk(module):
            text = ""
            if isinstance(node, ast.Constant) and id(node) not in strings:  # no docstring
                text = str(node.value)
            elif isinstance(node, ast.ImportFrom):
                text = " ".join([node.module or "", *(alias.name for alias in node.names)])
            elif isinstance(node, (ast.Name, ast.Attribute)):
                text = node.id if isinstance(node, ast.Name) else node.attr
            if names.search(text) and text not in DATA:
                found.append(f"{place}: {text}")
    assert found == []
