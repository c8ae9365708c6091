"""NVIDIA GPUs from procfs and NVML: chips, MIG instances, drivers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.detect import detect
from launcher.gpus.nvidia import CHIPS, capabilities
from launcher.host.facts import GpuInstance
from tests.support.hosts import Tree


def test_nvidia_with_its_driver(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 0x81, 1, "NVIDIA A100-SXM4-80GB")
    tree.nvidia(0x20B2, 0x01, 0, "NVIDIA A100-SXM4-80GB", mig=["gi1/ci0", "gi2/ci0"])
    host = detect(tree.nvidia_driver("535.54.03").root)
    first, second = host.gpus
    assert (first.arch, first.mode) == ("sm_80", "MIG")
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert first.instances == (
        GpuInstance(1, 0, (f"{caps}10", f"{caps}11")),
        GpuInstance(2, 0, (f"{caps}20", f"{caps}21")),
    )
    assert (second.arch, second.mode, second.nodes) == ("sm_80", None, ("/dev/nvidia1",))
    assert second.uuid == "GPU-00000081-0000-0000-0000-000000000000"
    driver = host.driver("nvidia")
    assert driver is not None
    assert driver.version == "535.54.03"


@pytest.mark.parametrize(
    ("device", "arch"),
    [(0x1DB1, "sm_70"), (0x20B2, "sm_80"), (0x2235, "sm_86"), (0x26B9, "sm_89"), (0x2335, "sm_90"),
     (0x2901, "sm_100"), (0x3182, "sm_103"), (0x2B85, "sm_120")],
)  # fmt: skip
def test_the_chips_of_every_generation(device: int, arch: str) -> None:
    assert capabilities(CHIPS.read_text())[device][0] == arch


def test_a_chip_that_no_table_has_is_there_without_an_arch(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0xFFF0, 1, 0, "NVIDIA X1000").nvidia_driver("600.1")
    tree.pci("0000:02:00.0", 0x10DE, 0xFFF1, 0x030200)
    driven, idle = detect(tree.root).gpus
    assert (driven.product, driven.arch, driven.driven) == ("NVIDIA X1000", None, True)
    assert (idle.product, idle.arch, idle.driven) == ("NVIDIA 10de:fff1", None, False)


def test_a_capture_has_what_the_library_said(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0xFFF0, 1, 0, "X1000", mig=["gi1/ci0"]).nvidia_driver("600.1")
    tree.recorded(nvml={"0000:01:00.0": {"arch": "sm_140", "mig": {"1/0": "MIG-aa"}}})
    (gpu,) = detect(tree.root).gpus
    assert gpu.arch == "sm_140"
    assert [part.uuid for part in gpu.instances] == ["MIG-aa"]


NVML = """
#include <string.h>
static int name(char *to, const char *from) { strcpy(to, from); return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **d) {
  *d = (void *)1; return strcmp(bus, "0000:01:00.0") != 0; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) {
  *major = 13; *minor = 1; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *n) { *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned i, void **m) {
  *m = (void *)(long)(i + 2); return i < 2 ? 0 : 6; }
int nvmlDeviceGetGpuInstanceId(void *m, unsigned *id) { *id = (unsigned)(long)m - 1; return 0; }
int nvmlDeviceGetComputeInstanceId(void *m, unsigned *id) { *id = 0; return 0; }
int nvmlDeviceGetUUID(void *m, char *to, unsigned n) {
  return name(to, m == (void *)2 ? "MIG-one" : "MIG-two"); }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_drivers_library_is_asked_through_its_interface(tmp_path: Path) -> None:
    """A library with NVML's symbols stands in for the driver's, which no test machine has."""
    source = tmp_path / "nvml.c"
    source.write_text(NVML)
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source)], check=True)
    code = (
        "from launcher.gpus import nvml; at = '0000:01:00.0';"
        "print(nvml.capability(at), nvml.instances(at), nvml.capability('0000:02:00.0'))"
    )
    variables = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True
    )
    assert done.stdout == "sm_131 {(1, 0): 'MIG-one', (2, 0): 'MIG-two'} None\n"


def test_the_open_kernel_module_states_its_version_elsewhere(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x2335, 1, 0, "NVIDIA H200").nvidia_driver("555.42.02", True)
    driver = detect(tree.root).driver("nvidia")
    assert driver is not None
    assert driver.version == "555.42.02"
