"""GPU vendors: what each vendor reports, and a made-up vendor through the registry alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from aam.contract.errors import Unavailable
from launcher.commands.doctor import examine
from launcher.detect import detect
from launcher.gpus import VENDORS
from launcher.host.facts import Host
from launcher.plan.decision import assess
from launcher.plan.hardware import hardware_of
from tests.support.decisions import decide, inputs_of, name_of
from tests.support.hosts import MI300A, NAVI22, PHOENIX, Tree, write
from tests.support.launches import ROOT

# --- GPUs that no image is for


def test_a_gpu_of_intel_is_named_and_not_used(tmp_path: Path) -> None:
    host = detect(Tree(tmp_path).pci("0000:03:00.0", 0x8086, 0x56A0, 0x038000).root)
    choice = decide(host)
    assert name_of(choice) == "cpu"
    assert "no image is for GPUs of Intel (at 0000:03:00.0)" in str(choice.findings[0])
    assert choice.findings[0].severity == "warning"
    with pytest.raises(Unavailable, match="no image is for GPUs of Intel"):
        decide(host, use="required")


def test_graphics_inside_a_processor_of_intel_is_no_gpu(tmp_path: Path) -> None:
    tree = Tree(tmp_path).pci("0000:00:02.0", 0x8086, 0xA7A0, 0x030000)
    choice = decide(detect(tree.root))
    assert name_of(choice) == "cpu"
    assert [(f.severity, f.evidence) for f in choice.findings] == [("note", "there is no GPU")]
    tree.amd(MI300A, 0x41)
    assert name_of(decide(detect(tree.root))) == "rocm64"


def test_a_capture_of_a_host_is_complete(tmp_path: Path) -> None:
    """What the patterns of all vendors match is enough to detect the same GPUs."""
    tree = Tree(tmp_path / "h").cpu().amd(MI300A, 0x41).amd_driver("6.10.5")
    tree.nvidia(0x20B2, 0x81, 0, "A100", mig=["gi1/ci0"]).nvidia_driver("535.1")
    patterns = [pattern for vendor in VENDORS.values() for pattern in vendor.files]
    attributes = [f"sys/bus/pci/devices/*/{name}" for name in ("vendor", "device", "class")]
    for pattern in (*(pattern[1:] for pattern in patterns), *attributes):
        for path in tree.root.glob(pattern):
            write(tmp_path / "copy" / path.relative_to(tree.root), path.read_text())
    first, second = detect(tree.root), detect(tmp_path / "copy")
    assert (first.gpus, first.drivers) == (second.gpus, second.drivers)
    assert [gpu.vendor for gpu in second.gpus] == ["amd", "nvidia"]


# --- reasons


def test_what_is_selected_counts_no_integrated_gpu(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().amd(MI300A, 3, minor=128).amd(PHOENIX, 0x64, minor=129)
    (selection,) = hardware_of(inputs_of(detect(tree.root))).selections
    assert selection.summary.endswith("→ 1 selected (renderD128)")


def test_a_card_cut_by_mig_is_left_out_by_name(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 1, 0, "A100", mig=["gi1/ci0"]).nvidia_driver("535.1")
    tree.nvidia(0x20B2, 2, 1, "A100")
    choice = decide(detect(tree.root))
    left = [(d.value, d.why) for d in choice.decisions if d.subject == "left out"]
    reason = "a run uses GPUs of one model, and cuda128 runs on 1 x A100 (sm_80)"
    assert left == [("1 x A100 (sm_80, cut by MIG)", reason)]


def overridden(
    tree: Tree, name: str = "HSA_OVERRIDE_GFX_VERSION", value: str = "10.3.0"
) -> list[str]:
    tree.recorded(environment={name: value})
    inputs = inputs_of(detect(tree.root), built=())
    found = examine(inputs, assess(inputs)[0])
    return [str(f) for f in found if f.cause == "The arch of the GPUs is overridden"]


def test_the_remedy_for_an_override_follows_from_the_images(tmp_path: Path) -> None:
    (instinct,) = overridden(Tree(tmp_path / "a").amd(MI300A, 1))
    assert "unset it: images have code for gfx942" in instinct
    (radeon,) = overridden(Tree(tmp_path / "b").amd(NAVI22, 1))
    assert "no image has code for gfx1031; with --image NAME --force" in radeon
    assert "unset" not in radeon
    assert overridden(Tree(tmp_path / "c")) == []


@pytest.mark.parametrize("name", ["HSA_OVERRIDE_GFX_VERSION", "HSA_OVERRIDE_GFX_VERSION_1"])
def test_an_empty_override_and_that_of_one_gpu_are_named(tmp_path: Path, name: str) -> None:
    (warned,) = overridden(Tree(tmp_path).cpu().amd(MI300A, 2), name, "")
    assert f"{name}=, the kernel reports gfx942" in warned


# --- a made-up vendor, by the registry alone

ACME = """
import sys
from launcher import cli
from launcher.gpus import VENDORS
from launcher.gpus.vendor import Vendor
from launcher.host import pci
from launcher.host.facts import Driver, Gpu


class Acme(Vendor):
    name = "acme"
    title = "Acme"
    module = "anvil"
    visible_devices = "ACME_VISIBLE"
    shared_nodes = ("/dev/acmectl",)

    def gpus(self, tree, live):
        found = [f for f in pci.functions(tree) if f.vendor == 0xACEE]
        return tuple(
            Gpu("acme", n, "anvil1", "Anvil 1", f.address, (f"/dev/acme{n}",))
            for n, f in enumerate(found)
        )

    def driver(self, tree):
        path = "/sys/module/anvil/version"
        return Driver("acme", tree.text(path).strip(), path) if tree.has(path) else None

    def driver_misfit(self, driver, pins, least, ranges):
        return None if driver.version >= pins["anvil"] else f"driver {driver.version} is too old"


VENDORS["acme"] = Acme()
sys.exit(cli.main())
"""
IMAGES = """images:
  acme: {title: our own, vendor: acme, archs: [anvil1], pins: {torch: "2.7.1", anvil: "2"}}
"""


def acme(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch` with the vendor registered, about a captured host with two of its GPUs."""
    return subprocess.run(
        [sys.executable, "-c", ACME, *args, "--host", str(folder / "h")],
        capture_output=True, text=True, cwd=folder, check=False,
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder), "PATH": str(folder)},
    )  # fmt: skip


@pytest.fixture
def acme_host(tmp_path: Path) -> Path:
    tree = Tree(tmp_path / "h")
    for bus in (1, 2):
        tree.pci(f"0000:0{bus}:00.0", 0xACEE, 0x0001, 0x120000)
    write(tree.root / "sys/module/anvil/version", "2.1\n")
    node = {"gid": 44, "group": "video", "mode": 0o660, "access": True}
    nodes = dict.fromkeys(("/dev/acmectl", "/dev/acme0", "/dev/acme1"), node)
    tree.recorded(environment={"ACME_VISIBLE": "1"}, nodes=nodes)
    write(tmp_path / ".config/aam/launch.yaml", IMAGES)
    (tmp_path / "t.biom").touch()
    return tmp_path


WORDS = ("pretrain", "--table", "t.biom", "--output-dir", "out")


def test_a_made_up_vendor_is_detected_explained_and_planned(acme_host: Path) -> None:
    done = acme(acme_host, "explain", *WORDS, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert [gpu["product"] for gpu in printed["host"]["gpus"]] == ["Anvil 1", "Anvil 1"]
    assert printed["plan"]["image"] == "acme"
    assert printed["plan"]["devices"] == ["/dev/acmectl", "/dev/acme1"]
    assert dict(printed["plan"]["variables"])["ACME_VISIBLE"] == "0"
    assert "source=/dev/acme1,destination=/dev/acme1" in printed["command_line"]
    assert "/dev/acme0" not in printed["command_line"]
    text = acme(acme_host, "explain", *WORDS).stdout
    assert "acme GPUs     2 listed, 2 readable, ACME_VISIBLE=1" in text
    assert "1 x Anvil 1 (anvil1) are in its PyTorch's list; driver 2.1" in text


def test_doctor_knows_a_made_up_vendor(acme_host: Path) -> None:
    done = acme(acme_host, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "driver        acme, driver 2.1" in done.stdout
    assert "Anvil 1 (anvil1) at 0000:01:00.0, /dev/acme0" in done.stdout
    assert "acme, cpu would fit" in done.stdout
    write(acme_host / "h/sys/module/anvil/version", "1.9\n")
    done = acme(acme_host, "doctor")
    assert done.returncode == 69
    assert "1 x Anvil 1 (anvil1); acme: driver 1.9 is too old" in done.stdout


def test_an_unregistered_vendor_is_not_seen(acme_host: Path) -> None:
    host: Host = replace(detect(acme_host / "h"), environment={})
    assert host.gpus == ()
    assert "acme" not in VENDORS
