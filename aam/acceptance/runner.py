"""Run of the parts within a time budget; every finished part is written at once."""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from aam import __version__
from aam.acceptance import page, result
from aam.acceptance.part import AcceptancePart, Context, run_part
from aam.acceptance.parts import PARTS, SEVERAL_RANKS
from aam.acceptance.result import AcceptanceFile, ImageRun, PartResult
from aam.console import console, duration, info, warn
from aam.contract import stop_file
from aam.contract.errors import CannotCreate, Interrupted
from aam.contract.options.commands.acceptance import Acceptance
from aam.contract.run_record import launched_by, now
from aam.distributed.environment import Ranks, read_environment
from aam.numerics.stack_identity import processor
from aam.performance.measurement.device import DeviceFacts, device_facts
from aam.performance.measurement.setup import interrupted_by_sigterm
from aam.training import run_folder

LEAST = 20.0
"""Seconds of the budget that a part needs to be started at all."""
WRONG = 1
"""Exit status with a part that is wrong or failed."""


def run(options: Acceptance, parts: Mapping[str, AcceptancePart] = PARTS) -> int:
    """Measure the parts that are left.

    Args:
        options: folder, parts, budget in minutes, size and reference.
        parts: registry of the parts by name.

    Returns:
        The exit status: 1 if one of the chosen parts is wrong or failed, else 0.

    Raises:
        Unavailable: a GPU was requested and there is none.
        CannotCreate: another acceptance or another host writes to the folder, or it is full.
        DataError: acceptance.json or the reference is not what was written.
        Interrupted: the job's stop request; the same command goes on.
    """
    ranks = read_environment(os.environ)
    if not ranks.is_main:
        # One rank prints for all.
        console.quiet = True
        return _run(options, parts, ranks)
    # SIGTERM raises an exception, so that the part in progress and all that it started are ended.
    with run_folder.locked(options.output_dir), interrupted_by_sigterm():
        return _run(options, parts, ranks)


def _run(options: Acceptance, parts: Mapping[str, AcceptancePart], ranks: Ranks) -> int:
    began, started = time.monotonic(), time.time()
    file = options.output_dir / result.FILE
    reference = None if options.reference is None else result.read(options.reference)
    content = result.read(file) if file.exists() else AcceptanceFile(__version__, {}, ())
    device = device_facts(options.device)
    _require_same_host(content.host, _facts(device, content.host), options.output_dir)
    run = _this_run(device, ranks)
    run = next((one for one in content.runs if one.key == run.key), run)
    chosen = _chosen(options, parts, ranks)
    left = [name for name in chosen if options.overwrite or not _finished(run.parts.get(name))]
    info(f"aam {__version__}, {run.title}, {device.name}: {len(left)} of {len(chosen)} parts.")
    if others := [name for name in options.parts if name not in chosen]:
        how = "several ranks" if ranks.world_size > 1 else "one process"
        info(f"Not measured by {how}: {', '.join(others)}.")
    if device.busy:
        warn(f"{device.busy}; the measured times are not those of a device of your own.")
    shared = options.output_dir.absolute() / "parts"
    small = options.size == "small" or (options.size == "auto" and not device.gpu)
    context = Context(
        shared, shared, _slug(run), "cuda" if device.gpu else "cpu", _gpus(content, run, device),
        small, started,
    )  # fmt: skip
    for number, name in enumerate(left):
        remaining = 60 * options.minutes - (time.monotonic() - began)
        if _stop_requested() and ranks.is_main:
            raise Interrupted(
                "Stopped by the job", f"{len(left) - number} parts left", "start it again"
            )
        if remaining < LEAST:
            break
        limit = min(parts[name].limit, remaining)
        place = replace(context, folder=shared / context.run / _folder(name, ranks))
        speeds = _reference_rates(reference, content.host, run, name)
        with _shown(parts[name].title):
            found = run_part(parts[name], place, limit, speeds)
        if found.verdict == "failed" and limit < parts[name].limit and found.seconds >= limit:
            break  # the budget ended it, so it is left
        _print(name, found)
        if name == "host":
            _require_same_host(content.host, found.measured, options.output_dir)
            content = replace(content, host=found.measured or content.host)
            context = replace(context, gpus=len(found.measured.get("gpus", ())))
        found = replace(found, busy=device.busy)
        run = replace(run, date=now(), parts={**run.parts, name: found})
        content = content.with_run(run)
        if ranks.is_main:
            # After each part, so that a killed job keeps what it has measured.
            result.write(file, content)
    if not ranks.is_main:
        return 0
    page.write(options.output_dir, content, parts)
    rest = [name for name in chosen if name not in run.parts]
    if rest:
        info(f"Left: {', '.join(rest)}. The same command goes on with them.")
    if run.parts:
        info(f"Result: {file}, {options.output_dir / page.FILE}")
    bad = any(
        run.parts[name].verdict in ("wrong", "failed") for name in chosen if name in run.parts
    )
    return WRONG if bad else 0


def _chosen(options: Acceptance, parts: Mapping[str, AcceptancePart], ranks: Ranks) -> list[str]:
    """Return the parts in the order of the registry; those of ranks are for several ranks alone."""
    together = ranks.world_size > 1
    fitting = [name for name in parts if (name in SEVERAL_RANKS) is together]
    wanted = [name for name in fitting if not options.parts or name in options.parts]
    if not together and "host" in fitting and "host" not in wanted:
        return ["host", *wanted]  # the other parts and the reader need it
    return wanted


def _finished(found: PartResult | None) -> bool:
    return found is not None and found.verdict != "failed"


def _this_run(device: DeviceFacts, ranks: Ranks) -> ImageRun:
    """Describe this image and the number of nodes, as the launcher and PyTorch state them."""
    plan = launched_by(os.environ) or {}
    image, digest, engine = (str(plan.get(key) or "") for key in ("image", "digest", "engine"))
    nodes = -(-ranks.world_size // ranks.local_world_size)
    return ImageRun(PurePath(image).name, digest, device.torch, engine or "native", nodes, now())


def _slug(run: ImageRun) -> str:
    name = f"{run.image or 'native'}-{run.digest[-8:]}-torch-{run.torch}-{run.nodes}"
    return re.sub(r"[^\w.+]+", "-", name)[:100]


def _folder(name: str, ranks: Ranks) -> str:
    return name if ranks.is_main else f"{name}-{ranks.rank}"


def _gpus(content: AcceptanceFile, run: ImageRun, device: DeviceFacts) -> int:
    """Return the number of GPUs that the part `host` found."""
    found = run.parts.get("host")
    return len(found.measured.get("gpus", ())) if found else int(device.gpu)


def _facts(device: DeviceFacts, host: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts about this host as its part `host` has them, without a measurement.

    A process may see some of the GPUs alone, so their number is left to the part.
    """
    gpus = host.get("gpus", [])
    if device.gpu and device.name not in gpus:
        gpus = [device.name]
    return {"arch": device.arch, "gpus": gpus, "cpu": processor()}


def _require_same_host(host: Mapping[str, Any], here: Mapping[str, Any], folder: Path) -> None:
    """Refuse a folder of another host.

    Args:
        host: facts in the file; empty before the part `host` is measured.
        here: facts about this host; empty if their measurement failed.
        folder: folder of the file.

    Raises:
        CannotCreate: the folder has measurements of other GPUs or another model of CPU.
    """
    for name in ("arch", "gpus", "cpu"):
        if host and here and host.get(name) != here[name]:
            raise CannotCreate(
                "The folder has measurements of another host",
                f"'{folder}', {name} {host.get(name)}, here {here[name]}",
                "choose another --output-dir",
            )


def _reference_rates(
    reference: AcceptanceFile | None, host: Mapping[str, Any], run: ImageRun, name: str
) -> Mapping[str, float]:
    """Return the speeds of a part in the reference, if that is of the same GPU and nodes.

    The same image is preferred to others.
    """
    if reference is None or (host and reference.host.get("arch") != host.get("arch")):
        return {}
    runs = [one for one in reference.runs if one.nodes == run.nodes and name in one.parts]
    for one in sorted(runs, key=lambda one: one.image != run.image):
        rates = one.parts[name].measured.get("rates")
        if isinstance(rates, dict):
            numbers = rates.items()
            return {k: float(v) for k, v in numbers if isinstance(v, int | float) and v > 0}
    return {}


def _stop_requested() -> bool:
    named = os.environ.get(stop_file.VARIABLE)
    return bool(named) and Path(str(named)).exists()


@contextmanager
def _shown(title: str) -> Iterator[None]:
    """Show on a terminal what is measured."""
    if console.is_terminal and not console.quiet:
        with console.status(f"{title} ..."):
            yield
    else:
        yield


def _print(name: str, found: PartResult) -> None:
    """Print a line for a part, and its sentence below."""
    info(f"{name:<14}{found.verdict:<20}{duration(found.seconds):>12}")
    info(textwrap.fill(found.summary, 78, initial_indent="  ", subsequent_indent="  "))
