"""Definitions and locks are generated from the catalog; stacks differ in what they pin."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from aam.contract.errors import UsageError
from launcher.config import catalog as shipped_catalog
from launcher.config import read
from launcher.engines import docker, podman
from launcher.engines.engine import ImageBuild, ImageReference
from launcher.images import build
from launcher.plan import catalog as catalog_module
from launcher.plan.catalog import Catalog, Image
from tests.support.engines import ROOT
from tests.support.images import packages_of, pip
from tests.support.scripts import load_script

CONTAINERS = ROOT / "containers"
ARGUMENT = re.compile(r"^(?:ARG |    )(BASE|SNAPSHOT|TORCH|TORCH_INDEX)=(\S+)$", re.MULTILINE)
HASHED = re.compile(r"^[a-z0-9._-]+==\S+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\\n)?)+$")


def catalog() -> Catalog:
    return shipped_catalog(read({}, {}))


NAMES = tuple(image.name for image in catalog().images)
each = pytest.mark.parametrize("name", NAMES)


def image(name: str) -> Image:
    return catalog().require(name)


@pytest.fixture(scope="module")
def generator() -> Any:
    return load_script(CONTAINERS / "make_definitions.py")


@each
def test_every_image_of_the_catalog_has_its_definitions(name: str, generator: Any) -> None:
    assert image(name).definition == f"containers/{name}.def"
    generated: dict[str, str] = generator.definitions()
    for ending in ("def", "Dockerfile"):
        text = (CONTAINERS / f"{name}.{ending}").read_text()
        assert text == generated[f"{name}.{ending}"], "run `make definitions`"
        arguments = image(name).arguments
        assert dict(ARGUMENT.findall(text)) == {
            **arguments, "BASE": str(ImageReference.parse(arguments["BASE"]))
        }  # fmt: skip


def test_the_catalog_as_json_is_that_of_the_yaml(
    generator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = catalog_module.SHIPPED.read_bytes()
    assert catalog_module.COMPILED.read_text() == generator.compiled(text), "run `make definitions`"
    # An edit of the YAML counts, whatever the JSON has.
    edited = tmp_path / "catalog.yaml"
    edited.write_bytes(text.replace(b"title: ROCm 6.3,", b"title: ROCm 6.3 edited,"))
    monkeypatch.setattr(catalog_module, "SHIPPED", edited)
    assert catalog_module.shipped().require("rocm63").title.startswith("ROCm 6.3 edited")


@each
def test_every_fact_of_the_catalog_has_a_source(name: str) -> None:
    sources = yaml.safe_load((CONTAINERS / "sources.yaml").read_text())
    facts = {"base", *image(name).pins}
    facts |= {fact for fact in ("archs", "attention") if getattr(image(name), fact)}
    assert {sources["images"][name][fact] for fact in facts} <= sources["sources"].keys()


def test_no_definition_is_without_an_image() -> None:
    for ending in ("def", "Dockerfile"):
        assert {path.stem for path in CONTAINERS.glob(f"*.{ending}")} == set(NAMES)
    assert {path.stem for path in (CONTAINERS / "locks").glob("*.txt")} == set(NAMES)


def test_a_new_stack_is_an_entry_of_the_catalog(generator: Any) -> None:
    arguments = {"BASE": "registry/base:day@sha256:12", "SNAPSHOT": "base", "TORCH": "9.9.9",
                 "TORCH_INDEX": "https://index"}  # fmt: skip
    new = {"title": "ROCm 99, PyTorch 9.9.9", "arguments": arguments}
    for ending in ("def", "Dockerfile"):
        text = generator.definition("rocm99", new, ending)
        assert "ROCm 99, PyTorch 9.9.9" in text.splitlines()[0]
        assert dict(ARGUMENT.findall(text)) == {**arguments, "BASE": "registry/base@sha256:12"}
        assert "install.sh rocm99 " in text


def test_the_revision_of_an_installation_is_its_commit_or_nothing(tmp_path: Path) -> None:
    """A plain installation has no checkout beside it; pip keeps the commit of a repository."""
    place = tmp_path / "site/attention_all_microbes-9.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: attention-all-microbes\nVersion: 9\n"
    )
    code = (
        "from pathlib import Path; from launcher.images import build as d; "
        "print(repr(d.revision(Path('/p'))))"
    )

    def revision() -> str:
        variables = {"PYTHONPATH": f"{tmp_path}/site:{ROOT}", "PATH": os.environ["PATH"]}
        argv = [sys.executable, "-c", code]
        done = subprocess.run(
            argv, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert revision() == "''"
    url = {"url": "https://git.example/aam", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    (place / "direct_url.json").write_text(json.dumps(url))
    assert revision() == "'c0ffee'"


@each
def test_both_kinds_set_the_same_environment(name: str) -> None:
    ours = re.findall(r'^export (\w+)="(.*)"$', (CONTAINERS / "environment.sh").read_text(), re.M)
    text = (CONTAINERS / f"{name}.Dockerfile").read_text()
    assert re.findall(r'^ENV (\w+)="(.*)"$', text, re.M) == ours


@each
def test_locks_are_complete_and_pin_what_the_catalog_says(name: str) -> None:
    text = (CONTAINERS / "locks" / f"{name}.txt").read_text()
    arguments, pins = image(name).arguments, image(name).pins
    common, marker, of_torch = text.partition(f"# torch: {arguments['TORCH_INDEX']}\n")
    assert marker
    assert re.search(rf"^torch=={re.escape(arguments['TORCH'])}( |$)", of_torch, re.M)
    assert arguments["TORCH"].partition("+")[0] == pins["torch"]
    if "triton" in pins:
        assert re.search(rf"^(pytorch-)?triton-rocm=={pins['triton']}( |$)", of_torch, re.M)
    entries = re.split(r"\n(?=[a-z])", common.partition("absl")[1] + common.partition("absl")[2])
    assert len(entries) > 60
    assert all(HASHED.match(entry.strip()) for entry in entries)
    for entry in re.split(r"\n(?=[a-z])", re.sub(r"^# .*\n", "", of_torch, flags=re.M).strip()):
        assert HASHED.match(entry)
    # Without the packages of the extra `search`, `aam search` would be refused in every image.
    (extra,) = re.findall(r"^search = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.M)
    for package in re.findall(r'"(\w+)', extra):
        assert re.search(rf"^{package}==", text, re.M), package


@each
def test_the_base_has_the_python_of_the_lock_and_is_named_by_its_digest_alone(name: str) -> None:
    """Apptainer 1.2 and 1.3 and SingularityCE read no reference with both a tag and a digest."""
    base = image(name).arguments["BASE"]
    tag = r"(?:debian:bookworm-\d+-slim|python:(\d+\.\d+)\.\d+-slim-bookworm)"
    named = re.fullmatch(tag + "@sha256:[0-9a-f]{64}", base)
    assert named
    assert (named[1] or "3.11") == image(name).pins["python"]  # Debian 12 has 3.11
    assert ":" not in str(ImageReference.parse(base)).partition("@")[0]


def test_install_script_is_sh() -> None:
    for script in ("install.sh", "environment.sh"):
        subprocess.run(["sh", "-n", str(CONTAINERS / script)], check=True)


# --- arguments


def test_arguments_replace_the_catalogs() -> None:
    found = build.arguments(image("rocm63"), ["TORCH=2.13.0+cpu"])
    assert found == {**image("rocm63").arguments, "TORCH": "2.13.0+cpu"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["TORHC=1"], "did you mean 'TORCH'"),
        (["base=x"], "BASE"),
        (["WHEELS=/x"], "No such build argument"),
        (["TORCH"], "--build-arg TORCH=VALUE"),
        (["TORCH="], "--build-arg TORCH=VALUE"),
        (["TORCH=2 3"], "without spaces"),
        (["TORCH=1", "TORCH=2"], "twice"),
    ],
)
def test_wrong_arguments_are_refused_before_an_engine_sees_them(
    args: list[str], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        build.arguments(image("cpu"), args)


@pytest.mark.nightly
@pytest.mark.slow
@each
def test_the_index_has_every_wheel_of_a_lock_by_its_hash(name: str, tmp_path: Path) -> None:
    """For the Python of the image; PyTorch's own builds where its index answers."""
    lock, arguments = CONTAINERS / "locks" / f"{name}.txt", image(name).arguments
    more = ["--dry-run", "--ignore-installed", "--target", str(tmp_path / "none")]
    if arguments["TORCH_INDEX"] != "pypi":
        try:
            urllib.request.urlopen(f"{arguments['TORCH_INDEX']}/torch/", timeout=20).close()
            more += ["--extra-index-url", arguments["TORCH_INDEX"]]
        except OSError:
            (tmp_path / lock.name).write_text(packages_of(lock))
            lock = tmp_path / lock.name
    (machine,) = image(name).machines
    done = pip("install", lock, image(name).pins["python"], *more, machine=machine)
    assert done.returncode == 0, done.stderr


# --- command lines of builds


def job(arguments: dict[str, str], **more: Any) -> ImageBuild:
    facts: dict[str, Any] = {
        "program": "/usr/bin/engine", "name": "cpu", "arguments": arguments, "context": Path("/c"),
        "scratch": Path("/s"), "epoch": 9, "wheels": None, "archive": None,
        "test": True, "place": Path("/i/cpu.sif"),
    }  # fmt: skip
    return ImageBuild(**{**facts, **more})


DIGEST = f"sha256:{'3f' * 32}"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (f"127.0.0.1:5000/aam/base:tag@{DIGEST}", f"127.0.0.1:5000/aam/base@{DIGEST}"),
        (f"debian:bookworm-slim@{DIGEST}", f"debian@{DIGEST}"),
    ],
)
def test_references_without_their_tag(given: str, read: str) -> None:
    assert str(ImageReference.parse(given)) == read


def test_docker_and_podman_differ_in_their_own_options_alone() -> None:
    argv = [e.ENGINE.build_argv(job({"TORCH": "1"}), "t") for e in (podman, docker)]
    own = {"--format", "docker", "--force-rm", "--layers=false", "--timestamp", "9"} | {
        "--provenance=false"
    }
    assert [w for w in argv[0] if w not in own] == [w for w in argv[1] if w not in own]


# --- the folder that is built from


def test_the_context_is_the_same_whoever_stages_it(tmp_path: Path) -> None:
    one = build.stage(tmp_path / "one")
    (tmp_path / "one/aam/cli.py").chmod(0o600)
    assert build.stage(tmp_path / "two") == one
    assert not list((tmp_path / "one").rglob("__pycache__"))
    assert {p.name for p in (tmp_path / "one").iterdir()} == {"aam", "containers"}


def test_the_revision_tells_a_changed_checkout(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", "-C", str(tmp_path), *settings, *args],
                              capture_output=True, text=True, check=True)  # fmt: skip
        return done.stdout.strip()

    for part in ("aam", "containers"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "file").write_text("1")
    assert build.revision(tmp_path) == ""  # a version is no revision
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    head = git("rev-parse", "HEAD")
    assert build.revision(tmp_path) == head
    (tmp_path / "aam/file").write_text("2")
    assert build.revision(tmp_path) == f"{head}-changed"
