"""Virtual environments from the locks of the images: choice of the stack, commands, real runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aam.contract.errors import Unavailable, UsageError
from aam.contract.yaml_document import load
from launcher.detect import detect
from launcher.plan.catalog import SHIPPED, catalog_of
from launcher.plan.decision import Choice, decide_stack
from launcher.plan.settings import Entry, merge
from tests.support.decisions import CHECK, inputs_of
from tests.support.hosts import MI50, MI210, MI300A, RX7900, Tree
from tests.support.launches import forked

CATALOG = catalog_of(load(SHIPPED.read_text()))
ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "containers/locks"


def choose(tree: Tree, stack: str = "auto", force: bool = False) -> tuple[str, Choice]:
    settings = merge([{"image": Entry(stack, "command line, --image")}])
    request = replace(CHECK, launcher_options={"--force": True} if force else {})
    image, choice = decide_stack(inputs_of(detect(tree.root), request, settings, built=()))
    return image.name, choice


def env(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch env` in a folder, which is its home, with an empty folder as its PATH."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    own = {"HOME": str(folder), "PATH": str(tools)}
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return forked(["env", *args], folder, {**kept, **own, **variables})


# --- choice of the stack


@pytest.mark.parametrize(
    ("kinds", "masked", "stack", "count"),
    [
        ([MI300A, MI300A], None, "rocm64", 2),
        ([MI210, RX7900], None, "rocm64", 1),
        ([MI300A, MI50], None, "rocm64", 1),
        ([MI300A, MI50], "0", "rocm64", 1),  # the MI50 is masked
        ([MI50, MI50], None, "rocm60", 2),
    ],
)
def test_the_newest_stack_that_serves_the_best_gpus(
    tmp_path: Path,
    kinds: list[tuple[int, int]],
    masked: str | None,
    stack: str,
    count: int,
) -> None:
    tree = Tree(tmp_path).cpu()
    for number, kind in enumerate(kinds, 1):
        tree.amd(kind, number)
    environment = {"ROCR_VISIBLE_DEVICES": masked} if masked else {}
    name, choice = choose(tree.amd_driver(None).recorded(environment=environment))
    assert (name, len(choice.gpus)) == (stack, count)


def test_gpus_that_the_stack_leaves_out_are_named(tmp_path: Path) -> None:
    _, choice = choose(Tree(tmp_path).cpu().amd(MI300A, 1).amd(MI50, 2).amd_driver(None))
    (left,) = (d.value for d in choice.decisions if d.subject == "left out")
    assert "(gfx906)" in left


@pytest.mark.parametrize(
    ("driver", "stack"), [("470.82", None), ("550.54", "cuda128"), ("580.1", "cuda132")]
)
def test_the_driver_limits_the_stack(tmp_path: Path, driver: str, stack: str | None) -> None:
    tree = Tree(tmp_path).nvidia(0x20B0, 1, 0, "NVIDIA A100-SXM4-40GB").nvidia_driver(driver)
    if stack is None:
        with pytest.raises(Unavailable, match=r"No image serves these GPUs.*--image cpu"):
            choose(tree)
    else:
        assert choose(tree)[0] == stack


def test_two_vendors_are_chosen_between_by_stack(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().amd(MI300A, 1).amd_driver(None)
    tree.nvidia(0x20B0, 9, 0, "NVIDIA A100-SXM4-40GB").nvidia_driver("580.1")
    with pytest.raises(UsageError, match="choose with --image rocm64 or cuda132"):
        choose(tree)
    assert choose(tree, "cuda128")[1].gpus[0].vendor == "nvidia"


def test_a_stack_that_serves_no_gpu_here_needs_force(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().amd(MI50, 1).amd_driver(None)
    with pytest.raises(Unavailable, match=r"rocm72 does not fit.*not compiled for gfx906"):
        choose(tree, "rocm72")
    assert choose(tree, "rocm72", force=True)[0] == "rocm72"
    assert choose(tree, "cpu")[1].gpus == ()


def test_a_processor_that_no_lock_is_for(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No image is built for this processor: aarch64"):
        choose(Tree(tmp_path).recorded(machine="aarch64"))


# --- the commands, printed


def test_a_dry_run_prints_the_reason_and_the_commands(tmp_path: Path) -> None:
    host = Tree(tmp_path / "host").cpu().amd(MI300A, 1).amd_driver("6.10.5")
    done = env(tmp_path, "auto", "e", "--host", str(host.root), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1 x MI300A (gfx942) are in its PyTorch's list" in done.stdout
    make, locked, aam, check = done.stdout.splitlines()[-4:]
    assert make == f"python3.12 -I -m venv {tmp_path}/e"
    python = f"{tmp_path}/e/bin/python -I"
    index = "--extra-index-url https://download.pytorch.org/whl/rocm6.4"
    lock = LOCKS / "rocm64.txt"  # the driver does not list ROCm 7.2
    pip = f"{python} -m pip --disable-pip-version-check install --no-deps"
    assert locked == (f"{pip} --only-binary :all: --require-hashes {index} --requirement {lock}")
    assert aam == f"{pip} --no-build-isolation {ROOT}"
    assert check == f"{python} -m launcher.cli --runtime native check --quick --device cpu"
    assert not (tmp_path / "e").exists()


# --- bad input


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["cup", "e"], 64, "No such image: 'cup'"),
        (["cpu"], 64, "env takes a stack and a folder: cpu; give both"),
        (["rocm63", "e"], 69, "needs a GPU of AMD and none can be used"),
        (["cpu", "there", "--python", sys.executable], 73, "The folder cannot be made"),
        (["cpu", "e", "--wheels", "there"], 66, "No wheels to install from"),
        (["mine", "e"], 66, "This image has no lock"),
    ],
)
def test_create_is_refused_at_once(
    tmp_path: Path, args: list[str], status: int, message: str
) -> None:
    (tmp_path / "there").mkdir()
    keys = "title: ours, vendor: cpu, pins: {python: '3.11', torch: '2'}, arguments: {TORCH: '2'}"
    (tmp_path / "site.yaml").write_text(f"images: {{mine: {{{keys}}}}}\n")
    done = env(tmp_path, *args, "--site", "./site.yaml")
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".yaml") in (
        ["bin", "there"], [".cache", "bin", "there"],
    )  # fmt: skip


def test_a_python_of_another_version_is_named(tmp_path: Path) -> None:
    """The lock of ROCm 7.2 has PyTorch for Python 3.12, which this Python is not."""
    if sys.version_info[:2] == (3, 12):
        pytest.skip("this is Python 3.12")
    done = env(tmp_path, "rocm72", "e", "--force")
    assert done.returncode == 69
    assert "no uv and no Python 3.12, for which the lock of rocm72 is" in done.stderr
    assert not (tmp_path / "e").exists()


def locked_for_this_python() -> str:
    """Return the options by which this Python serves; the CPU stack is locked for Python 3.11."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the wheel of the stack cpu is locked for Python 3.11")
    return sys.executable


@pytest.mark.slow
def test_without_a_network_nothing_is_left(tmp_path: Path) -> None:
    """The index is at an address of no host."""
    done = env(tmp_path, "cpu", "e", "--python",
               locked_for_this_python(), PIP_INDEX_URL="http://127.0.0.1:9/simple",
               PIP_EXTRA_INDEX_URL="", PIP_NO_INDEX="", PIP_RETRIES="1",
               PIP_CONFIG_FILE="/dev/null")  # fmt: skip
    assert done.returncode == 73, done.stderr
    assert "The environment was not made" in done.stderr
    assert "--wheels" in done.stderr
    assert not (tmp_path / "e").exists()


@pytest.mark.slow
def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    """A file system of 40 MiB takes the environment; the catalog's own size is overruled."""
    if os.geteuid() != 0:
        pytest.skip("a file system is mounted as root")
    small = tmp_path / "small"
    small.mkdir()
    (tmp_path / "site.yaml").write_text("images: {cpu: {room: [0, 0]}}\n")
    script = f'mount -t tmpfs -o size=40m none {small}; "$@"; s=$?; ls -A {small}; exit $s'
    args = [sys.executable, "-m", "launcher.cli", "env", "cpu", str(small / "e"),
            "--python", locked_for_this_python(), "--site",
            str(tmp_path / "site.yaml")]  # fmt: skip
    # Where the index of PyTorch is out of reach, pip repeats each look-up of a package there.
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PIP_RETRIES": "0"}
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *args], text=True,
                          capture_output=True, env=variables, check=False)  # fmt: skip
    assert done.returncode == 73, done.stderr
    assert "the disk is full" in done.stderr
    assert done.stdout == ""
    (tmp_path / "site.yaml").write_text("images: {cpu: {room: [4000, 0]}}\n")
    done = subprocess.run(args, text=True, capture_output=True, env=variables, check=False)
    assert "No room to build" in done.stderr


# --- env create, in full


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of the CPU stack, fetched as the remedy without a network names it."""
    python, folder = locked_for_this_python(), tmp_path_factory.mktemp("wheels")
    text, mark, pytorch = (LOCKS / "cpu.txt").read_text().partition("# torch: ")
    for name, part in (("packages", text), ("pytorch", f"{mark}{pytorch}")):
        lock = folder.parent / f"{name}.txt"
        lock.write_text(part)
        argv = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                "--require-hashes", "--requirement", str(lock), "--dest", str(folder)]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:  # pip's configuration names no folder with PyTorch's CPU build
            argv += ["--index-url", "https://download.pytorch.org/whl/cpu"]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("installer", [pytest.param("pip", marks=pytest.mark.nightly), "uv"])
def test_an_environment_of_the_cpu_stack_computes(
    tmp_path: Path, wheels: Path, installer: str
) -> None:
    path = str(tmp_path / "bin")
    if installer == "uv":
        uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        if uv is None:
            pytest.skip("uv is not installed")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/uv").symlink_to(uv)
    args = ("cpu", "e", "--python", sys.executable)
    done = env(tmp_path, *args, "--wheels", str(wheels), PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{tmp_path}/e/bin/aam-launch runs aam")
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    launch = [f"{tmp_path}/e/bin/aam-launch", "--runtime", "native", "simulate", "--output-dir",
              "study", "--samples", "48", "--asvs", "60", "--richness", "20"]  # fmt: skip
    simulated = subprocess.run(
        launch, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert simulated.returncode == 0, simulated.stderr
    version = [
        f"{tmp_path}/e/bin/python",
        "-I",
        "-c",
        "import torch, aam; print(torch.__version__)",
    ]
    assert subprocess.run(version, capture_output=True, text=True).stdout == "2.13.0+cpu\n"
    again = env(tmp_path, *args, "--wheels", str(wheels), PATH=path)
    assert (again.returncode, "File exists" in again.stderr) == (73, True)
