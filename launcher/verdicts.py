"""Verdicts on GPUs: kept in the user's cache, looked up by key, measured where there is none.

A verdict decides what a run computes with, so a file that somebody else could have written is not
believed: neither one of another owner, nor one that others may write, nor a link.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aam import __version__
from launcher.engines import command
from launcher.engines.folders import make_private
from launcher.errors import Unavailable
from launcher.host.facts import Gpu, Host
from launcher.plan.choose import NATIVE, Choice, Native
from launcher.plan.decision import Finding
from launcher.plan.measured import Key, Measured, problem
from launcher.plan.plan import Plan

CHECK = ("check", "--json", "--device", "cuda")
"""What is run to measure."""

PATIENCE = 900
"""Seconds that a check may take, the start of a container included; one that hangs ends itself."""

LONGEST = 1 << 20


def folder(variables: Mapping[str, str]) -> Path:
    """Return the folder of verdicts."""
    base = variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME", "/")) / ".cache"
    return Path(base) / "aam" / "verdicts"


def key_of(host: Host, choice: Choice, native: Native) -> Key | None:
    """Return what a verdict for this choice is kept under; None if nothing names the image."""
    gpu = choice.gpus[0]
    if choice.engine == NATIVE:
        image = f"native:{native.torch}"
    elif choice.built is None:
        return None
    elif choice.built.digest:
        image = choice.built.digest
    else:
        try:
            facts = os.stat(choice.built.place)
        except OSError:  # the name of an image that an engine keeps
            return None
        image = f"file:{facts.st_size:x}-{facts.st_mtime_ns:x}"
    return Key(image, gpu.arch or "unknown", _version(host, gpu), __version__)


def _version(host: Host, gpu: Gpu) -> str:
    """Return the version of a GPU's kernel driver as a verdict calls it."""
    driver = host.driver(gpu.vendor)
    return driver.version if driver and driver.version else f"kernel {host.kernel}"


def place(key: Key, cache: Path) -> Path:
    """Return the file of a key."""
    name = hashlib.sha256(json.dumps(key.plain(), sort_keys=True).encode()).hexdigest()[:32]
    return cache / f"{name}.json"


def stored(key: Key, cache: Path) -> Measured:
    """Return the verdict that is kept under a key, or why none is used."""
    file = place(key, cache)
    absent = f"nothing is kept for {key}"
    try:
        document = _read(file)
    except FileNotFoundError:
        return Measured(absent=absent)
    except (OSError, ValueError) as error:
        return Measured(absent=absent, findings=(_unused(file, str(error)),))
    if document["key"] != key.plain():
        return Measured(absent=absent, findings=(_unused(file, "it is for another key"),))
    return Measured(document, str(file))


def of_host(host: Host, cache: Path) -> list[Mapping[str, Any]]:
    """Return the verdicts that are kept for the GPUs and driver of a host, the latest first."""
    here = {(gpu.arch or "unknown", _version(host, gpu)) for gpu in host.gpus}
    found = []
    for file in sorted(cache.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            found.append(_read(file))
    fitting = [d for d in found if (d["key"]["arch"], d["key"]["driver"]) in here]
    return sorted(fitting, key=lambda document: str(document["made"]), reverse=True)


def store(document: Mapping[str, Any], key: Key, cache: Path) -> Finding | None:
    """Keep a verdict; one that cannot be kept is no obstacle, but has to be said."""
    file = place(key, cache)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(handle, "w") as stream:
            json.dump(document, stream)
        os.replace(aside, file)
    except OSError as error:
        evidence = f"'{file}', {error.strerror}"
        return Finding("warning", "The verdict cannot be kept", evidence, "make room for it")
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return None


def measure(plan: Plan, key: Key) -> Mapping[str, Any]:
    """Run the check of `plan`, which is one for `CHECK`, and return its verdict with the key.

    Raises:
        Unavailable: it says that the GPU cannot compute, or does not answer.
        ValueError: it gave no verdict.
    """
    print(f"aam-launch: measuring attention once for {key}", file=sys.stderr, flush=True)
    make_private(plan.folders)
    words = command(plan)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False,
            env=plan.environment(os.environ), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _refused(f"no answer in {PATIENCE} s") from error
    except OSError as error:
        raise ValueError(f"'{words[0]}', {error.strerror}") from error
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else f"exit status {done.returncode}"
    if done.returncode == Unavailable.status:
        raise _refused(last.removeprefix("aam: "))
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if done.returncode not in (0, 1) or not isinstance(document, dict):
        raise ValueError(last)
    document = {**document, "key": key.plain()}
    wrong = problem(document)
    if wrong:
        raise ValueError(wrong)
    return document


def _refused(evidence: str) -> Unavailable:
    remedy = "take another node or image; --no-check starts all the same"
    return Unavailable("The GPU does not compute", evidence.rstrip("."), remedy)


def _read(file: Path) -> Mapping[str, Any]:
    """Return the verdict in a file.

    Raises:
        OSError, ValueError: why it is not believed.
    """
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        for facts in (os.fstat(handle), os.stat(file.parent)):
            if facts.st_uid != os.geteuid():
                raise ValueError("it belongs to somebody else")
            if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("others may write it")
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is no file")
        try:
            document = json.loads(stream.read(LONGEST))
        except ValueError:
            raise ValueError("it is damaged") from None
    wrong = problem(document)
    if wrong:
        raise ValueError(wrong)
    assert isinstance(document, dict)
    return document


def _unused(file: Path, why: str) -> Finding:
    return Finding("warning", "A stored verdict is not used", f"'{file}', {why}", "remove it")
