"""Smoke test of an image, run inside it: imports, versions, `aam`, and training on a small study.

    smoke.py            all checks, about half a minute
    smoke.py --quick    without training

Prints a line for each check; the exit status is 1 if one fails. It writes to a temporary folder
alone, so it works for any user, with a read-only root and without a home.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

AAM = Path("/opt/aam")
MODULES = ("torch", "safetensors", "biom", "skbio", "sklearn", "h5py", "matplotlib", "aam")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
TINY = (
    *("--embedding-dim", "16", "--attention-heads", "2", "--attention-layers", "1"),
    *("--epochs", "2", "--batch-size", "8", "--device", "cpu", "--seed", "1"),
)


class Failed(Exception):
    """A check that failed."""


def imports() -> str:
    """Import the libraries of the model."""
    for name in MODULES:
        importlib.import_module(name)
    return ", ".join(MODULES)


def versions() -> str:
    """Compare the installed packages with the lock, and PyTorch with the build argument."""
    pins = [found.groups() for line in (AAM / "lock.txt").read_text().splitlines()
            if (found := PIN.match(line))]  # fmt: skip
    wrong = [f"{name} {version(name)}, not {pin}" for name, pin in pins if version(name) != pin]
    labels = json.loads((AAM / "labels.json").read_text())
    pinned = dict(pair.split("=", 1) for pair in labels["org.aam.arguments"].split())["TORCH"]
    torch = labels["org.aam.torch"]
    if torch != pinned and torch.partition("+")[0] != pinned:
        wrong.append(f"torch {torch}, not {pinned}")
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{len(pins)} packages as locked, torch {torch}"


def program() -> str:
    """Run `aam --version`."""
    return _run("aam", "--version").strip()


def unifrac() -> str:
    """Find `ssu`, the reference implementation of UniFrac."""
    found = shutil.which("ssu")
    if found is None:
        raise Failed("no ssu on PATH")
    return found


def study() -> str:
    """Simulate a study and pretrain on it."""
    with tempfile.TemporaryDirectory(prefix="aam-smoke-") as folder:
        made, out = f"{folder}/study", f"{folder}/out"
        _run("aam", "example", "--output-dir", made, "--samples", "48", "--asvs", "60",
             "--richness", "20", "--seed", "1")  # fmt: skip
        _run("aam", "pretrain", *TINY, "--table", f"{made}/table.biom", "--tree",
             f"{made}/tree.nwk", "--output-dir", out)  # fmt: skip
        if not Path(out, "model/model.json").is_file():
            raise Failed("pretrain wrote no model")
    return "simulated, pretrained"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command[:2])}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Run the checks; return the exit status."""
    checks = [imports, versions, program, unifrac]
    failed = 0
    for check in checks if arguments == ["--quick"] else [*checks, study]:
        try:
            print(f"ok      {check.__name__:<9} {check()}", flush=True)
        except (Failed, ImportError, OSError) as error:
            failed = 1
            print(f"FAILED  {check.__name__:<9} {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
