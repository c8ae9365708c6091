"""docs/acceptance/: the tables of the documents, the catalog and the constants agree with it."""

from __future__ import annotations

import json
import math
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aam.contract.errors import DataError
from aam.network.memory_prediction import ASSUMED
from aam.stack.acceptance_run import AcceptanceFile, ImageRun, PartResult, recommended, write
from launcher import config
from launcher.plan.assembly import tuned_options
from launcher.plan.catalog import Catalog
from launcher.plan.hardware import preference
from tests.support.launches import parse

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "draw_acceptance.py"))
FILES: Mapping[str, AcceptanceFile] = SCRIPT["read_files"]()
CATALOG: Catalog = SCRIPT["shipped"]()
ATTENTION = "--attn-implementation"
FASTER = 1.1
"""Ratio of speeds above which another image than the preferred one counts as faster."""


def contradictions(content: AcceptanceFile) -> Iterator[str]:
    """Yield what a file shows otherwise than the catalog and the memory predictions state."""
    arch, vendor = content.host["arch"], SCRIPT["vendor_of"](content.host)
    for run in content.runs:
        if "check" not in run.parts:
            continue
        wrong = {backend for backend, bad in SCRIPT["backends_of"](run).items() if bad}
        faults = CATALOG.faults_of(vendor, {"torch": run.torch}, arch)
        avoided = [fault for fault in faults if ATTENTION in fault.flags]
        required = {fault.flags[fault.flags.index(ATTENTION) + 1] for fault in avoided}
        if wrong and not faults:
            yield f"torch {run.torch}: {sorted(wrong)} wrong, and the catalog has no fault"
        if wrong & required:
            yield f"torch {run.torch}: {avoided[0].name} requires {required}, which is wrong"
        if avoided and not wrong:
            yield f"torch {run.torch}: {avoided[0].name} in the catalog, and all are right"
        for device in run.parts["check"].measured["devices"]:
            if (device.get("overhead") or 0) > ASSUMED:
                yield f"torch {run.torch}: libraries take {device['overhead']} bytes of a GPU"
    yield from faster_images(content, arch, vendor)


def faster_images(content: AcceptanceFile, arch: str, vendor: str | None) -> Iterator[str]:
    """Yield images that are faster than the one that a launch prefers of those measured."""
    rates: dict[str, Mapping[str, float]] = {
        run.image: run.parts["speed"].measured["rates"]
        for run in content.runs if run.nodes == 1 and "speed" in run.parts
    }  # fmt: skip

    images = sorted(CATALOG.images, key=lambda image: preference(image, arch, CATALOG))
    ranked = [image.name for image in images if image.name in rates]
    for other in ranked[1:]:
        first, second = rates[ranked[0]], rates[other]
        ratios = [math.log(second[name] / first[name]) for name in first if name in second]
        if ratios and (faster := math.exp(sum(ratios) / len(ratios))) > FASTER:
            yield f"{other} is {faster:.2f} times as fast as {ranked[0]}"


def made_up(*runs: tuple[str, str, Mapping[str, str]], **speeds: float) -> AcceptanceFile:
    """Return a file of a MI300A, with the outcome of each backend for image and PyTorch."""

    def run(image: str, torch: str, backends: Mapping[str, str]) -> ImageRun:
        device: dict[str, Any] = {"name": "GPU 0", "quick": False, "verdict": "", "faults": {}}
        device |= {"backends": dict(backends), "overhead": 1 << 20}
        parts = {"check": PartResult("as predicted", "Right.", 1.0, {"devices": [device]})}
        if image in speeds:
            rates = {"rates": {"bf16, batch 64": speeds[image]}}
            parts["speed"] = PartResult("as predicted", "Fast.", 1.0, rates)
        return ImageRun(image, "sha256:1", torch, "singularity", 1, "2026-11-23T10:00:00", parts)

    host = {"gpus": ["AMD Instinct MI300A"] * 4, "arch": "gfx942"}
    return AcceptanceFile("0.8.0", host, tuple(run(*each) for each in runs))


RIGHT = {"math": "right", "mem_efficient": "right", "flash": "absent"}
WRONG = {**RIGHT, "mem_efficient": "wrong"}


def test_the_tables_of_the_documents_are_those_of_the_files() -> None:
    for path, text in SCRIPT["pages"](FILES, CATALOG).items():
        assert path.read_text(encoding="utf-8") == text, f"run {SCRIPT['__file__']}"


def test_measured_hosts_agree_with_the_catalog() -> None:
    assert {name: list(contradictions(one)) for name, one in FILES.items()} == {
        name: [] for name in FILES
    }


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (made_up(("rocm63", "2.7.1+rocm6.3", RIGHT)), ""),
        (made_up(("rocm62", "2.5.1+rocm6.2", WRONG)), ""),
        (made_up(("rocm63", "2.7.1+rocm6.3", WRONG)), "['mem_efficient'] wrong"),
        (made_up(("rocm62", "2.5.1+rocm6.2", RIGHT)), "aotriton-mask in the catalog"),
        (made_up(("rocm62", "2.5.1+rocm6.2", {"math": "wrong"})), "requires {'math'}"),
        (made_up(("rocm64", "2.8.0", RIGHT), ("rocm63", "2.7.1", RIGHT), rocm64=90.0, rocm63=95.0),
         ""),
        (made_up(("rocm64", "2.8.0", RIGHT), ("rocm63", "2.7.1", RIGHT), rocm64=50.0, rocm63=95.0),
         "rocm63 is 1.90 times as fast as rocm64"),
    ],
)  # fmt: skip
def test_a_contradiction_of_the_catalog_is_found(content: AcceptanceFile, found: str) -> None:
    sentences = list(contradictions(content))
    assert len(sentences) == bool(found)
    assert found in "".join(sentences)


def test_a_measured_stack_replaces_what_is_not_measured(tmp_path: Path) -> None:
    content = made_up(("rocm63", "2.7.1+rocm6.3", WRONG), ("", "2.9 |<b>", RIGHT))
    write(tmp_path / "mi300a.json", content)
    table, missing = SCRIPT["stacks"](SCRIPT["read_files"](tmp_path), CATALOG).split("\n\n")
    gpu = "[4 x AMD Instinct MI300A (gfx942)](acceptance/mi300a.json)"
    measured = "1 | math | mem_efficient | 1 as predicted | 2026-11-23"
    assert f"| {gpu} | rocm63, PyTorch 2.7.1+rocm6.3 | {measured} |" in table
    assert "GPUs of NVIDIA" in missing
    assert "GPUs of AMD" not in missing
    assert "`rocm72`" in missing
    assert "`rocm63`" not in missing
    assert not {"<", ">"} & {*table}
    assert {line.count("|") for line in table.splitlines()} == {8}


def test_the_launcher_takes_the_recommended_settings(tmp_path: Path) -> None:
    content = made_up(("rocm63", "2.7.1+rocm6.3", RIGHT), ("rocm64", "2.8.0+rocm6.4", RIGHT))
    values = {"--mixed-precision": "bf16", "--gradient-checkpointing": True, "--num-workers": 2}
    for run, samples in zip(content.runs, (100.0, 90.0), strict=True):
        measured = {"values": values, "gain": 1.3, "samples": samples}
        run.parts["speed"] = PartResult("as predicted", "Chosen.", 1.0, measured)
    file = tmp_path / "settings.yaml"
    file.write_text(recommended(content) or "")
    settings = config.read({"--site": str(file)}, {"HOME": str(tmp_path)})
    request = parse(["pretrain", "--table", "t.biom", "--output-dir", "out"])
    argv, decisions, _ = tuned_options(request, settings, "gfx942", ())
    assert argv == ["--mixed-precision", "bf16", "--gradient-checkpointing", "--num-workers", "2"]
    assert {decision.source.partition(":")[0] for decision in decisions} == {str(file)}
    images = config.catalog(settings).images
    assert [image.name for image in images if "gfx942" in image.prefer] == ["rocm63"]


def test_an_edited_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mi300a.json"
    write(file, made_up(("rocm63", "2.7.1+rocm6.3", WRONG)))
    content = json.loads(file.read_text())
    content["runs"][0]["torch"] = "2.8.0"
    file.write_text(json.dumps(content))
    with pytest.raises(DataError):
        SCRIPT["read_files"](tmp_path)
