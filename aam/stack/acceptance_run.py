"""Run of the acceptance within a time budget, and its results: acceptance.json, page, settings.

Every finished part is written at once. acceptance.json is shared with others, so it holds no names
of hosts, users or folders, and it is read as untrusted input: within bounds, by type, with a
checksum.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import platform
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from aam.console import console, duration, info, working
from aam.contract import stop_file
from aam.contract.errors import AamError, CannotCreate, DataError, Interrupted, printable, reason_of
from aam.contract.files import write_json, write_text
from aam.contract.options.commands.measure import Acceptance
from aam.contract.records import Mismatch, convert, read_json
from aam.contract.version import __version__
from aam.environment import Ranks, read_environment
from aam.memory import shown_size
from aam.network.numerics.device import processor
from aam.number_format import significant
from aam.pipeline import run_folder
from aam.report.page import render
from aam.report.terminal import Table
from aam.run_record import launched_by, now
from aam.stack import acceptance_parts as parts
from aam.stack import acceptance_training as training
from aam.stack.acceptance_parts import (
    EXPANDABLE,
    AcceptancePart,
    Context,
    Measured,
    NotPossible,
    PartFailure,
    PartOutcome,
    Peaks,
    SettingSpeeds,
    hardware,
)
from aam.stack.tune import device_facts

SCHEMA = 1
FILE = "acceptance.json"
PAGE = "report.html"
SETTINGS = "settings.yaml"
MAX_TEXT = 2000  # characters of a text in a file
MIN_BUDGET = 20.0  # seconds left in the budget from which a part is started
TOLERANCE = 0.15
"""Relative difference from the reference speed that counts: clocks and other users vary."""
SAVES = 0.95  # share of the reserved memory from which expandable segments are recommended


PARTS = parts.PARTS | training.PARTS
"""Registry of the parts by name; `PartName` of the options has the same names."""

SEVERAL_RANKS = ("nodes",)  # parts measured by several ranks together


@dataclass(frozen=True)
class PartResult:
    """Result of a part."""

    verdict: PartOutcome
    summary: str  # one sentence
    seconds: float
    # measured values; `rates`, name -> speed (higher is faster), are compared with a reference
    measured: dict[str, Any] = field(default_factory=dict)
    busy: str = ""  # use of the device by others when the command began


@dataclass(frozen=True)
class ImageRun:
    """Results with one image on a number of nodes."""

    image: str  # name; "" without an image
    digest: str
    torch: str
    engine: str  # container engine; "native" without a container
    nodes: int
    date: str  # date of the last part, in UTC
    parts: dict[str, PartResult] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Key of a run, unique in a file."""
        return self.image, self.digest, self.torch, self.nodes

    @property
    def title(self) -> str:
        """Title: image (without one, the version of PyTorch) and nodes."""
        name = self.image or f"native, torch {self.torch}"
        return name if self.nodes == 1 else f"{name}, {self.nodes} nodes"


@dataclass(frozen=True)
class AcceptanceFile:
    """Content of acceptance.json; `host` has the measured values of the part `host`."""

    aam: str
    host: dict[str, Any]
    runs: tuple[ImageRun, ...]

    def with_run(self, run: ImageRun) -> AcceptanceFile:
        """Add a run; it replaces a run with the same key."""
        runs = {earlier.key: earlier for earlier in self.runs} | {run.key: run}
        return replace(self, aam=__version__, runs=tuple(runs.values()))


def write(path: Path, content: AcceptanceFile) -> None:
    """Write acceptance.json atomically, without names of this host, its users and folders."""
    node = platform.node()
    names = {node, node.partition(".")[0], os.environ.get("SLURMD_NODENAME", "")}
    with contextlib.suppress(OSError, KeyError, RuntimeError):  # no entry in /etc/passwd
        names |= {getpass.getuser(), Path.home().name}
    # Common words and names of two letters would replace words of a sentence.
    names -= {"root", "cpu", "cuda", "gpu", "host", "none"}
    # The longest name first: it may contain a shorter one.
    by_length = sorted((name for name in names if len(name) > 2), key=len)[::-1]

    def anonymous(text: str) -> str:
        # Only the file name of a path stays.
        text = re.sub(r"(?<![\w.])~?/(?:[^\s/'\",:;()]+/)+", "", text)
        for name in by_length:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "NAME", text)
        return printable(text, MAX_TEXT)

    # JSON has neither NaN nor infinity, and six digits are enough.
    text = json.dumps({"schema": SCHEMA, **asdict(content)})
    rounded = json.loads(
        text, parse_float=lambda n: float(f"{float(n):.6g}"), parse_constant=lambda _: None
    )
    plain = _with_texts(rounded, anonymous)
    write_json(path, plain | {"sha256": checksum(plain)})


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Apply a function to all texts of JSON values, also to keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, change) for item in value]
    return value


def checksum(plain: Mapping[str, Any]) -> str:
    """Compute the checksum of acceptance.json, independent of the order of keys."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> AcceptanceFile:
    """Read an acceptance.json of this or another host as untrusted input."""
    title, remedy = "acceptance file", "take the file as `aam acceptance` wrote it"
    plain = read_json(path, dict[str, Any], title, remedy)
    if (schema := plain.pop("schema", None)) != SCHEMA:
        reason = f"'{path}' has schema {schema}, aam {__version__} reads {SCHEMA}"
        raise DataError("The acceptance file has another schema", reason, "measure again")
    # The checksum detects an accidental edit. It is no signature: anybody can compute it.
    if plain.pop("sha256", None) != checksum({"schema": SCHEMA, **plain}):
        reason = f"'{path}', its checksum does not match its content"
        raise DataError("The acceptance file was edited", reason, remedy)
    try:
        if _with_texts(plain, lambda text: printable(text, MAX_TEXT)) != plain:
            raise Mismatch("a text has control characters or is too long")
        content = convert(plain, AcceptanceFile)
        if len({run.key for run in content.runs}) < len(content.runs):
            raise Mismatch("it has one of its runs twice")
    except Mismatch as error:
        raise DataError(f"The {title} is damaged", f"'{path}', {error}", remedy) from error
    return content


def run(options: Acceptance, registry: Mapping[str, AcceptancePart] = PARTS) -> int:
    """Measure the remaining parts; return 1 if one of the chosen parts is wrong or failed."""
    ranks = read_environment(os.environ)
    # One rank prints and writes for all.
    console.quiet = not ranks.is_main
    main = ranks.is_main
    with run_folder.locked(options.output_dir) if main else contextlib.nullcontext():
        return _run(options, registry, ranks)


def _run(options: Acceptance, registry: Mapping[str, AcceptancePart], ranks: Ranks) -> int:
    began, started = time.monotonic(), time.time()
    file = options.output_dir / FILE
    reference = None if options.reference is None else read(options.reference)
    content = read(file) if file.exists() else AcceptanceFile(__version__, {}, ())
    device = device_facts(options.device)
    gpus = content.host.get("gpus", [])
    # This process may not see all GPUs, so the part `host` counts them.
    same = not device.gpu or device.name in gpus
    facts = {"arch": device.arch, "gpus": gpus if same else [device.name], "cpu": processor()}
    _require_same_host(content.host, facts, options.output_dir)

    plan = launched_by(os.environ) or {}
    image, digest, engine = (str(plan.get(key) or "") for key in ("image", "digest", "engine"))
    image = PurePath(image).name
    nodes = -(-ranks.world_size // ranks.local_world_size)
    this = ImageRun(image, digest, device.torch, engine or "native", nodes, now())
    this = next((run for run in content.runs if run.key == this.key), this)
    fitting = [name for name in registry if (name in SEVERAL_RANKS) is (ranks.world_size > 1)]
    # The part `host` is always measured: other parts and readers of the file need it.
    chosen = [name for name in fitting if not options.parts or name in {*options.parts, "host"}]
    verdicts = {name: result.verdict for name, result in this.parts.items()}
    pending = [n for n in chosen if options.overwrite or verdicts.get(n, "failed") == "failed"]
    info(f"aam {__version__}, {this.title}, {device.name}: {len(pending)} of {len(chosen)} parts.")
    if unmeasured := [name for name in options.parts if name not in chosen]:
        processes = "several ranks" if ranks.world_size > 1 else "one process"
        info(f"Not measured by {processes}: {', '.join(unmeasured)}.")

    name = f"{this.image or 'native'}-{this.digest[-8:]}-torch-{this.torch}-{this.nodes}"
    shared = options.output_dir.absolute() / "parts"
    folder = shared / re.sub(r"[^\w.+]+", "-", name)[:100]
    folder.mkdir(parents=True, exist_ok=True)
    context = Context(
        folder=folder,
        shared=shared,
        device="cuda" if device.gpu else "cpu",
        gpus=len(gpus) or int(device.gpu),
        small=options.size == "small" or (options.size == "auto" and not device.gpu),
        started=started,
        until=began,
        overwrite=options.overwrite,
        rank=ranks.rank,
    )
    for number, name in enumerate(pending):
        row, remaining = registry[name], 60 * options.minutes - (time.monotonic() - began)
        requested = os.environ.get(stop_file.VARIABLE)
        if requested and Path(requested).exists() and ranks.is_main:
            remedy = f"{len(pending) - number} parts left"
            raise Interrupted("Stopped by the job", remedy, "start it again")
        if remaining < MIN_BUDGET:
            break
        limit = min(row.limit, remaining)
        speeds = _reference_rates(reference, content.host, this, name)
        with working(row.title):
            limited = replace(context, until=time.monotonic() + limit)
            part_result = run_part(row, limited, speeds)
        if part_result.verdict == "failed" and limit < row.limit and part_result.seconds >= limit:
            break  # ended by the budget, so it remains to be measured
        info(f"{name:<14}{part_result.verdict:<20}{duration(part_result.seconds):>12}")
        info(textwrap.fill(part_result.summary, 78, initial_indent="  ", subsequent_indent="  "))
        if name == "host" and part_result.measured:
            _require_same_host(content.host, part_result.measured, options.output_dir)
            content = replace(content, host=part_result.measured)
            context = replace(context, gpus=len(part_result.measured["gpus"]))
        part_result = replace(part_result, busy=device.busy)
        this = replace(this, date=now(), parts={**this.parts, name: part_result})
        content = content.with_run(this)
        if ranks.is_main:
            # After each part, so that a killed job keeps its results.
            write(file, content)
    if not ranks.is_main:
        return 0
    write_page(options.output_dir, content, registry)
    if unfinished := [name for name in chosen if name not in this.parts]:
        info(f"Left: {', '.join(unfinished)}. The same command goes on with them.")
    info(f"Result: {file}, {options.output_dir / PAGE}")
    outcomes = {this.parts[name].verdict for name in chosen if name in this.parts}
    return 1 if outcomes & {"wrong", "failed"} else 0


def run_part(row: AcceptancePart, context: Context, reference: Mapping[str, float]) -> PartResult:
    """Measure a part and compare its speeds with the reference; a failure becomes a sentence."""
    began = time.monotonic()
    measured: Measured | None = None
    outcome: PartOutcome = "failed"
    try:
        measured = row.measure(context)
        outcome, summary = measured.verdict()
    except NotPossible as reason:
        outcome, summary = "not possible here", str(reason)
    except PartFailure as failure:
        summary = str(failure)
    except (AamError, OSError, ValueError, LookupError, TypeError, ZeroDivisionError) as error:
        summary = printable(f"{type(error).__name__}: {reason_of(error)}")
    values = {} if measured is None else asdict(measured)
    speeds = values.get("rates", {})
    ratios = {name: speeds[name] / reference[name] for name in speeds if reference.get(name)}
    if ratios and outcome in ("as predicted", "slower"):
        lowest, highest = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        name = lowest
        if ratios[lowest] < 1 - TOLERANCE:
            outcome = "slower"
        elif outcome != "slower" and ratios[highest] > 1 + TOLERANCE:
            outcome, name = "faster", highest
        summary += f" {name} is {ratios[name]:.2f} times the reference."
    return PartResult(outcome, summary, round(time.monotonic() - began, 1), values)


def _require_same_host(host: Mapping[str, Any], facts: Mapping[str, Any], folder: Path) -> None:
    """Refuse a folder with measurements of other GPUs or another CPU model."""
    for name in ("arch", "gpus", "cpu"):
        if host and host.get(name) != facts[name]:
            raise CannotCreate(
                "The folder has measurements of another host",
                f"'{folder}', {name} {host.get(name)}, here {facts[name]}",
                "choose another --output-dir",
            )


def _reference_rates(
    reference: AcceptanceFile | None, host: Mapping[str, Any], this: ImageRun, name: str
) -> Mapping[str, float]:
    """Return the speeds of a part in the reference with the same GPU and number of nodes."""
    if reference is None or (host and reference.host.get("arch") != host.get("arch")):
        return {}
    runs = [run for run in reference.runs if run.nodes == this.nodes and name in run.parts]
    # The same image comes first.
    for candidate in sorted(runs, key=lambda run: run.image != this.image):
        rates = candidate.parts[name].measured.get("rates")
        if isinstance(rates, dict):
            return {k: float(v) for k, v in rates.items() if isinstance(v, int | float) and v > 0}
    return {}


_BYTES = ("predicted", "allocated", "reserved", "expandable", "rss", "peak_bytes", "overhead")
_HIDDEN = ("rates", "backends", "network")
"""Columns that repeat others or would make a table too wide."""


def write_page(
    folder: Path, content: AcceptanceFile, registry: Mapping[str, AcceptancePart]
) -> None:
    """Write the settings and the page: a line for each part, and tables of measured values."""
    host, order = content.host, list(registry)
    driver = f", driver {host['driver']}" if host.get("driver") else ""
    verdicts = []
    tables: list[Table] = []
    for run in content.runs:
        lines = []
        prefix = f"{run.title}: " if len(content.runs) > 1 else ""
        for name in sorted(run.parts, key=lambda n: order.index(n) if n in order else len(order)):
            result = run.parts[name]
            title = registry[name].title if name in registry else ""
            text = f"{result.summary} While it was measured {result.busy}."
            text = text if result.busy else result.summary
            lines.append((name, title, result.verdict, text, duration(result.seconds)))
            tables += _tables(f"{prefix}{name}", result.measured)
        verdicts.append((run.title, lines))
    text = render(
        "acceptance.html.j2",
        title="Acceptance",
        lead=f"{hardware(host)}{driver}, kernel {host.get('kernel')}, measured by aam "
        f"{content.aam}.",
        verdicts=verdicts,
        tables=tables,
    )
    write_text(folder / PAGE, text)
    if (settings := recommended(content)) is not None:
        write_text(folder / SETTINGS, settings)


def _tables(title: str, measured: Mapping[str, Any]) -> Iterator[Table]:
    """Yield a table for each list of records, without empty columns."""
    for key, value in measured.items():
        heading = f"{title}, {key.replace('_', ' ')}"
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            used = [
                name for name in dict.fromkeys(name for row in value for name in row)
                if name not in _HIDDEN
                and any(row.get(name) not in (None, "", [], {}) for row in value)
            ]  # fmt: skip
            rows = [[_cell(name, row.get(name)) for name in used] for row in value]
            yield Table(heading, [name.replace("_", " ") for name in used], rows)
        elif isinstance(value, dict) and value and key not in _HIDDEN:
            rows = [[str(label), _cell(key, item)] for label, item in value.items()]
            yield Table(heading, ["", key], rows)


def _cell(key: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int | float):
        return shown_size(round(value)) if key in _BYTES else significant(value)
    if isinstance(value, list):
        return ", ".join(_cell(key, item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(key, item)}" for name, item in value.items())
    return str(value)


def recommended(content: AcceptanceFile) -> str | None:
    """Return launcher settings: choices of `aam tune` with the fastest image; None without runs."""
    speeds = [
        (run, convert(run.parts["speed"].measured, SettingSpeeds)) for run in content.runs
        if run.nodes == 1 and "speed" in run.parts and run.parts["speed"].measured
    ]  # fmt: skip
    if not speeds:
        return None
    best, result = max(speeds, key=lambda row: row[1].samples or 0.0)
    chosen = result.values if result.gain > 1 else {}
    notes = [
        f"Settings for {hardware(content.host)} and {best.title}, the fastest that was measured. "
        "`aam tune` chose them on a simulated study; they train the same network."
    ]
    if measured := [run for run in result.runs if run.samples]:
        fastest = max(measured, key=lambda run: run.samples or 0.0)
        notes.append(
            f"Fastest: {fastest.setting}, {significant(fastest.samples or 0.0)} samples/s; another "
            "batch size is another training."
        )
    saved = False
    if "memory" in best.parts and (values := best.parts["memory"].measured):
        peaks = convert(values, Peaks)
        plain = next((run.reserved for run in peaks.runs if run.reserved), None)
        saved = bool(plain and peaks.expandable and peaks.expandable < SAVES * plain)
    options = {name.removeprefix("--"): value for name, value in chosen.items()}
    tuned = {"options": options, "env": dict([EXPANDABLE]) if saved else {}}
    lines = [f"# {line}" for note in notes for line in textwrap.wrap(note, 96)]
    arch = content.host.get("arch", "cpu")
    lines += ["tuned:", f"  {arch}:", *(f"    {k}: {json.dumps(v)}" for k, v in tuned.items())]
    if best.image and len(names := {run.image for run, _ in speeds}) > 1:
        why = f"the fastest of {len(names)} images that were measured"
        lines.append(f"images: {json.dumps({best.image: {'prefer': {arch: why}}})}")
    return "\n".join(lines) + "\n"
