"""Parts of the acceptance: commands of `aam` with a time limit, and verdicts about their results.

The commands do the measuring: `aam check`, `golden`, `memory` and `tune` print or write JSON, short
runs of `aam pretrain` log their steps. To add a part, write a function that returns a record of
measured values, the verdict of the record, and an entry of `PARTS` in `acceptance_run`; add its
name to `PartName` of `aam.contract.options.commands.measure`.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from aam.contract.errors import first_few
from aam.contract.gpus import GPU, one_gpu
from aam.contract.options import specs
from aam.contract.options.command_line import arguments
from aam.contract.options.commands.train import Pretrain
from aam.contract.records import convert, read_json
from aam.contract.stop_file import VARIABLE as STOP_FILE
from aam.memory import GIB, memory_available
from aam.network.numerics.report import WRONG, CheckReport, Cost
from aam.number_format import significant
from aam.run_record import launched_by
from aam.stack.tune import CONTEXT, Trial
from aam.stack.workload import call_in_child, child_process, read_steps

SLOW_LAUNCH = 30.0
"""Seconds from the launcher to the program; from a local disk, images of 10 GB start within 10."""
SLOW_GPU = 0.7  # fraction of the median speed of all GPUs below which a GPU is slow
PEAK_TOLERANCE = 0.1  # largest relative difference of a measured peak from the prediction
EXPANDABLE = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
"""Variable of PyTorch's allocator (CUDA and ROCm), and its value."""

GRACE = 10.0  # seconds between SIGTERM and SIGKILL; a command ends its own runs meanwhile

PartOutcome = Literal["as predicted", "faster", "slower", "wrong", "not possible here", "failed"]
PartVerdict = tuple[PartOutcome, str]  # outcome of a comparison, and one sentence
Row = TypeVar("Row", "Peak", "SettingSpeed")


class NotPossible(Exception):
    """This host or image cannot measure a part, for the reason in the message."""


class PartFailure(Exception):
    """A command of a part failed or hangs; the message has the last line of its output."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measured values of a part; `rates` are speeds by name, compared with a reference."""

    rates: dict[str, float] = field(default_factory=dict)

    def verdict(self) -> PartVerdict:
        """Compare the values with what is expected."""
        raise NotImplementedError


@dataclass(frozen=True)
class Context:
    """Context of a measurement: folders, device, limits; runs commands of `aam`."""

    folder: Path  # files of this image's run: output of commands, reports, trained networks
    shared: Path  # files of all runs: the simulated study, golden folders
    device: str  # "cpu" or "cuda"
    gpus: int  # number of GPUs that this process sees
    small: bool  # whether study and settings suit a minute on two CPU cores
    started: float  # unix time at which `aam acceptance` started
    until: float  # time of the monotonic clock at which a command is ended
    overwrite: bool = False  # whether results from before `started` are computed again
    rank: int = 0  # rank of this process among the processes that measure together

    @property
    def gpu(self) -> bool:
        """Whether a GPU is measured."""
        return self.device == GPU

    @property
    def left(self) -> float:
        """Seconds until a command is ended."""
        return max(0.0, self.until - time.monotonic())

    def aam(
        self,
        *arguments: object,
        accept: Collection[int] = (0,),  # exit statuses that are no failure; all if empty
        variables: Mapping[str, str] = {},
        without: Collection[str] = (),
        steps: Path | None = None,
        act_after: int = 0,
        act: Callable[[subprocess.Popen[bytes]], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of `aam`; return its exit status and output.

        The command logs its training steps in the file `steps`; after `act_after` steps, `act` is
        called with the process.
        """
        command = arguments[0]
        log = self.folder / f"{command}{f'-{self.rank}' if self.rank else ''}.txt"
        # The stop file of a job addresses this process, not its commands.
        removed = {STOP_FILE, *without}
        environment = {name: v for name, v in os.environ.items() if name not in removed}
        if steps is not None:
            steps.unlink(missing_ok=True)
            environment["AAM_STEP_LOG"] = str(steps)
        argv = [sys.executable, "-m", "aam", *map(str, arguments)]
        settings = {"cwd": self.folder, "env": {**environment, **variables}}
        with (
            tempfile.TemporaryFile() as output,
            log.open("a+b") as errors,
            child_process(argv, GRACE, stdout=output, stderr=errors, **settings) as child,
        ):
            begin = errors.tell()
            while act and steps and len(read_steps(steps)[0]) < act_after:
                if child.poll() is not None or not self.left:
                    raise PartFailure(f"`aam {command}` made less than {act_after} steps")
                time.sleep(0.02)
            if act:
                act(child)
            try:
                status = child.wait(self.left)
            except subprocess.TimeoutExpired:
                raise PartFailure(f"`aam {command}` had no result in time") from None
            output.seek(0)
            errors.seek(begin)
            printed, message = (f.read().decode(errors="replace") for f in (output, errors))
        if accept and status not in accept:
            end = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            line = (message.strip() or "no output").splitlines()[-1]
            raise PartFailure(f"`aam {command}` {end}: {line.strip()[:300]}")
        return subprocess.CompletedProcess(argv, status, printed, message)

    def pretraining(self) -> list[object]:
        """Return the arguments of `pretrain`; simulate its study if it is missing."""
        study = self.shared / ("study-small" if self.small else "study")
        while self.rank and self.left and not (study / "tree.nwk").is_file():
            time.sleep(0.2)  # the first rank makes it
        if not (study / "tree.nwk").is_file():
            size = "--samples 1100 --asvs 2000 --richness 185 --depth 10000 --subjects 40"
            if self.small:
                size = "--samples 64 --asvs 300 --length 100 --richness 40 --depth 2000"
            unfinished = study.with_name(f"{study.name}-new")
            self.aam("example", "--output-dir", unfinished, *size.split(), "--overwrite")
            unfinished.rename(study)
        files = ("--table", study / "table.biom", "--tree", study / "tree.nwk")
        batch = 8 if self.small else 64
        return ["pretrain", *files, "--device", self.device, "--batch-size", batch]


@dataclass(frozen=True)
class AcceptancePart:
    """A part of the acceptance."""

    title: str  # shown on the terminal and the page
    limit: float  # seconds after which it is ended
    measure: Callable[[Context], Measured]  # runs commands; the result has a verdict


@dataclass(frozen=True)
class HostFacts(Measured):
    """Host, GPUs and image."""

    gpus: list[str]  # names
    arch: str
    torch: str
    used: list[int]  # bytes of each GPU used by other processes
    cpu: str = ""
    cores: int = 0
    memory: int = 0
    gpu_memory: list[int] = field(default_factory=list)
    driver: str | None = None
    runtime: str | None = None
    kernel: str = ""
    settings: dict[str, list[str]] = field(default_factory=dict)  # name -> value of each GPU

    def verdict(self) -> PartVerdict:
        used = [f"{size / GIB:.1f} GiB of GPU {k}" for k, size in enumerate(self.used) if size]
        sentence = f"{hardware(asdict(self))}, torch {self.torch}."
        if len(set(self.gpus)) > 1:
            sentence += f" The GPUs differ: {', '.join(sorted(set(self.gpus)))}."
        if used:
            sentence += f" Others use {', '.join(used)}: a GPU of your own may be faster."
        return "as predicted", sentence


def hardware(host: Mapping[str, Any]) -> str:
    """Return the GPUs of a host, or its CPU, from the fields of `HostFacts`."""
    if gpus := host.get("gpus"):
        return f"{len(gpus)} x {gpus[0]} ({host.get('arch')})"
    return str(host.get("cpu", "a CPU"))


def measure_host(context: Context) -> HostFacts:
    """Collect facts about host, GPUs and image."""
    return HostFacts(**call_in_child(_host, context.device, timeout=context.left))


def _host(device: str) -> dict[str, Any]:
    # In a child process: a process that holds a GPU takes memory of the GPU.
    import torch

    from aam.network.numerics.device import gpu_names, identify, processor, select_gpu

    names = gpu_names() if device == GPU else []
    devices = [select_gpu(number) for number in range(len(names))] or [torch.device("cpu")]
    memory = [torch.cuda.mem_get_info(device) for device in devices] if names else []
    stack = vars(identify(devices[0]))
    return {
        "gpus": names,
        **{name: stack[name] for name in ("arch", "driver", "torch", "runtime")},
        "kernel": platform.release(),
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu_memory": [total for _, total in memory],
        # The context of this process is not counted.
        "used": [max(0, total - free - CONTEXT) for free, total in memory],
        "settings": gpu_settings() if names else {},
    }


_SYSFS = {
    "compute partition": "current_compute_partition",
    "memory partition": "current_memory_partition",
    "vbios": "vbios_version",
    "power limit, µW": "hwmon/hwmon*/power1_cap",
    "performance level": "power_dpm_force_performance_level",
    "firmware of SMC": "fw_version/smc_fw_version",
    # files with a line for each clock, the highest last
    "shader clock": "pp_dpm_sclk",
    "memory clock": "pp_dpm_mclk",
}
_NVIDIA = "power.limit,clocks.max.sm,clocks.max.memory,vbios_version,mig.mode.current"


def gpu_settings(root: Path = Path("/")) -> dict[str, list[str]]:
    """Read modes, limits and clocks of each GPU from sysfs or the vendor's tool."""
    settings: dict[str, list[str]] = {}
    for device in sorted(glob.glob(str(root / "sys/class/drm/card[0-9]*/device"))):
        for name, pattern in _SYSFS.items():
            for file in map(Path, glob.glob(f"{device}/{pattern}")):
                with suppress(OSError):  # no permission
                    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                    settings.setdefault(name, []).extend(line.strip(" *") for line in lines[-1:])
    tool = shutil.which("nvidia-smi")
    # The tool describes this host, not the files of a captured one.
    if not settings and tool and root == Path("/"):
        argv = [tool, f"--query-gpu={_NVIDIA}", "--format=csv,noheader"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        rows = list(csv.reader(done.stdout.splitlines(), skipinitialspace=True))
        for number, name in enumerate(_NVIDIA.split(",")):
            settings[name] = [row[number] for row in rows if len(row) > number]
    return {name: values[:64] for name, values in settings.items() if values}


@dataclass(frozen=True)
class LaunchFacts(Measured):
    """Plan of the launcher, and what this process sees of it."""

    launcher: bool
    visible: int = 0  # number of GPUs
    planned: int | None = None
    overhead: float | None = None  # seconds from the launcher to the program
    mounts: dict[str, int] | None = None  # number of mounts by kind
    memory: int = 0

    def verdict(self) -> PartVerdict:
        if not self.launcher:
            return "not possible here", "The program was not started by aam-launch."
        if self.planned is not None and self.visible != self.planned:
            return "wrong", f"{self.visible} GPUs are visible, {self.planned} were planned."
        sentence = f"{self.visible} GPUs visible"
        if mounts := self.mounts:
            sentence += f", {mounts['read-only']} mounts read-only"
            sentence += f", {mounts['read-write']} read-write"
        if self.overhead is None:
            return "as predicted", f"{sentence}."
        outcome: PartOutcome = "slower" if self.overhead > SLOW_LAUNCH else "as predicted"
        return outcome, f"{sentence}; {self.overhead:.1f} s from the launcher to the program."


def measure_launch(context: Context) -> LaunchFacts:
    """Compare the plan of the launcher with what this process sees."""
    plan = launched_by(os.environ)
    planned, gpus, started = ((plan or {}).get(name) for name in ("mounts", "gpus", "started"))
    mounts = None
    if isinstance(planned, list):
        writable = sum(isinstance(mount, list) and mount[-1:] == ["rw"] for mount in planned)
        mounts = {"read-only": len(planned) - writable, "read-write": writable}
    overhead = None
    if isinstance(started, int | float):
        # The clocks of two nodes may differ by more than the start takes.
        overhead = max(0.0, context.started - started)
    return LaunchFacts(
        plan is not None,
        context.gpus,
        len(gpus) if isinstance(gpus, list) and context.gpu else None,
        overhead,
        mounts,
        memory_available(),
    )


@dataclass(frozen=True)
class CheckedDevice:
    """Result of `aam check` on a device."""

    name: str
    verdict: str = ""
    backends: dict[str, str] = field(default_factory=dict)  # backend -> outcome
    faults: dict[str, list[str]] = field(default_factory=dict)  # backend -> its faults, if any
    overhead: int | None = None  # GPU memory that holds no tensors, in bytes
    speed: float | None = None  # median passes per second of the sample encoder in fp32
    failed: str = ""  # why there is no result

    @property
    def wrong(self) -> list[str]:
        """Wrong backends, each with its faults."""
        names = [name for name, outcome in self.backends.items() if outcome in WRONG]
        faults = {name: ", ".join(self.faults.get(name, [])) for name in names}
        return [f"{name} ({faults[name]})" if faults[name] else name for name in names]


@dataclass(frozen=True)
class CheckedDevices(Measured):
    """Results of `aam check` on all devices, and costs of the backends on the first device."""

    devices: list[CheckedDevice]
    costs: list[Cost] = field(default_factory=list)

    def verdict(self) -> PartVerdict:
        if silent := [device for device in self.devices if device.failed]:
            names = first_few(f"{device.name}: {device.failed}" for device in silent)
            return "wrong", f"{names} gave no result."
        if faulty := [device for device in self.devices if device.wrong]:
            names = "; ".join(f"{device.name}: {', '.join(device.wrong)}" for device in faulty)
            is_local = len(faulty) < len(self.devices)
            return "wrong", f"{names} wrong{', and not on the other devices' * is_local}."
        # A device without a timed backend has no speed and cannot be slow.
        speeds = {device.name: device.speed for device in self.devices if device.speed is not None}
        middle = statistics.median(speeds.values()) if speeds else 0.0
        for name, speed in speeds.items():
            if speed < SLOW_GPU * middle:
                return "slower", f"{name} computes at {speed / middle:.2f} of the median of all."
        fastest = []
        for mask, title in (("none", "without masks"), ("each", "with masks")):
            if costs := [cost for cost in self.costs if cost.mask == mask and _is_usual(cost)]:
                best = min(costs, key=lambda cost: cost.milliseconds)
                fastest.append(f"{best.backend} {title} ({best.milliseconds:.1f} ms)")
        in_fp32 = f" Fastest in fp32: {', '.join(fastest)}." if fastest else ""
        return "as predicted", f"{self.devices[0].verdict}.{in_fp32}"


def measure_check(context: Context) -> CheckedDevices:
    """Run `aam check` on one GPU after another."""
    devices: list[CheckedDevice] = []
    costs: tuple[Cost, ...] = ()
    for number in range(max(context.gpus, 1)):
        name = f"GPU {number}" if context.gpu else "CPU"
        variables = one_gpu(os.environ, number) if context.gpu else {}
        command = ("check", "--device", context.device, "--json")
        try:
            done = context.aam(*command, accept=(0, 1), variables=variables)
        except PartFailure as failure:  # the other GPUs are still checked
            devices.append(CheckedDevice(name, failed=str(failure)))
            continue
        report = CheckReport.from_json(done.stdout)
        costs = costs or report.costs
        usual = [1000 / cost.milliseconds for cost in report.costs if _is_usual(cost)]
        devices.append(CheckedDevice(
            f"{name}, {report.identity['device']}",
            report.summary,
            report.outcomes,
            {name: list(faults) for name in report.backends if (faults := report.faults(name))},
            report.overhead,
            statistics.median(usual) if usual else None,
        ))  # fmt: skip
    rates = {
        f"{cost.backend}, {cost.dtype}, {cost.shape}"
        f"{', masked' if cost.mask != 'none' else ''}": 1000 / cost.milliseconds
        for cost in costs if cost.milliseconds
    }  # fmt: skip
    return CheckedDevices(devices, list(costs), rates=rates)


def _is_usual(cost: Cost) -> bool:
    return (cost.dtype, cost.shape) == ("fp32", "sample encoder") and cost.milliseconds > 0


@dataclass(frozen=True)
class GoldenComparison:
    """Comparison of the golden case with a reference."""

    reference: str  # the CPU, or an image
    precision: str
    agree: bool
    verdict: str
    largest: float  # difference as a share of the allowed rounding


@dataclass(frozen=True)
class GoldenComparisons(Measured):
    """Comparisons of the golden case with the CPU and other images."""

    comparisons: list[GoldenComparison]

    def verdict(self) -> PartVerdict:
        if bad := [
            f"{comparison.reference} ({comparison.precision}): {comparison.verdict}"
            for comparison in self.comparisons if not comparison.agree
        ]:  # fmt: skip
            return "wrong", f"Differs from {'; '.join(bad)}"
        names = ", ".join(dict.fromkeys(comparison.reference for comparison in self.comparisons))
        largest = max(comparison.largest for comparison in self.comparisons)
        return "as predicted", f"Equal to {names}; {largest:.0%} of the allowed rounding."


def measure_golden(context: Context) -> GoldenComparisons:
    """Compare the golden case with the CPU and with other images (`aam golden`)."""
    shared, name = context.shared / "golden", context.folder.name
    cpu, this = shared / f"{name}-cpu", shared / f"{name}-{context.device}"
    for folder, device in ((cpu, "cpu"), (this, context.device)):
        if not (folder / "golden.safetensors").is_file():
            context.aam("golden", "generate", folder, "--device", device)
    images = {file.parent for file in shared.glob("*/golden.safetensors")} - {this, cpu}
    comparisons = []
    for folder in (cpu, *sorted(images)):
        for precision in ("none", "auto") if context.gpu and folder == cpu else ("none",):
            done = context.aam(
                "golden", "compare", folder, "--json", "--device", context.device,
                "--mixed-precision", precision, accept=(0, 1),
            )  # fmt: skip
            compared = json.loads(done.stdout)
            shares = [
                (1e9 if value is None else value / row["allowed"] if row["allowed"] else 0.0)
                for row in compared["rows"] for value in row["difference"].values()
            ]  # fmt: skip
            comparisons.append(GoldenComparison(
                "the CPU" if folder == cpu else folder.name,
                compared["here"]["precision"],
                compared["agree"],
                compared["verdict"],
                max(shares, default=0.0),
            ))  # fmt: skip
    return GoldenComparisons(comparisons)


@dataclass(frozen=True)
class TuneResult:
    """Content of tune.json."""

    default: Trial
    trials: tuple[Trial, ...]
    chosen: Trial


def tuned(context: Context, variables: Mapping[str, str] = {}) -> TuneResult:
    """Run `aam tune` once for the parts `memory` and `speed`, and return its result."""
    folder = context.folder / ("tuned-env" if variables else "tuned")
    file = folder / "tune.json"
    if not file.is_file() or (context.overwrite and file.stat().st_mtime < context.started):
        size = "--steps 6 --warmup-steps 2 --rounds 1" if context.small else "--steps 25 --rounds 2"
        if variables:
            size += " --subjects threads"  # no settings on a GPU
        elif context.small:
            size += " --subjects workers batch-size"
        measured = ("--output-dir", folder, "--overwrite", *size.split(), *context.pretraining())
        context.aam("tune", *measured, variables=variables)
    return read_json(file, TuneResult, "result of `aam tune`")


@dataclass(frozen=True)
class Peak:
    """Peaks of memory of a setting, in bytes; None if its run did not end."""

    setting: str
    predicted: int
    allocated: int | None = None
    reserved: int | None = None
    rss: int | None = None
    failure: str = ""


@dataclass(frozen=True)
class Peaks(Measured):
    """Peaks of settings, and the reserved memory with expandable segments."""

    runs: list[Peak]
    expandable: int | None = None

    def verdict(self) -> PartVerdict:
        if failed := _failed_runs(self.runs, "settings"):
            return "wrong", failed
        shares = {
            run.setting: run.allocated / run.predicted - 1
            for run in self.runs if run.allocated is not None
        }  # fmt: skip
        name = max(shares, key=lambda setting: abs(shares[setting]))
        bad = sum(abs(share) > PEAK_TOLERANCE for share in shares.values())
        if not bad:
            within = f"{abs(shares[name]):.1%} of the prediction"
            return "as predicted", f"{len(shares)} peaks are within {within}."
        more = "more" if shares[name] > 0 else "less"
        return "wrong", (
            f"{name} takes {abs(shares[name]):.0%} {more} than predicted; {bad} of {len(shares)} "
            f"peaks differ by more than {PEAK_TOLERANCE:.0%}."
        )


def measure_memory(context: Context) -> Peaks:
    """Compare the peaks predicted by `aam memory` with the peaks measured by `aam tune`."""
    if not context.gpu:
        raise NotPossible("A CPU does not count allocations.")
    result = tuned(context)
    runs = []
    trials = [
        trial for trial in result.trials
        if trial.subject in ("batch-size", "recompute", "chunks") and trial.decision
    ]  # fmt: skip
    for trial in (replace(result.default, setting="as given", options={}), *trials):
        options = arguments(specs(Pretrain), trial.options)
        done = context.aam("memory", "--json", *context.pretraining(), *options)
        runs.append(_row(trial, Peak, predicted=json.loads(done.stdout)["peak"]))
    # The allocator's variable is recommended if it saves memory.
    segments = tuned(context, dict([EXPANDABLE])).default.rates
    return Peaks(runs, segments.reserved if segments else None)


@dataclass(frozen=True)
class SettingSpeed:
    """Speed of a setting; None if its run did not end."""

    setting: str
    samples: float | None = None  # per second
    spread: float | None = None
    wait: float | None = None
    decision: str | None = None
    gain: float = 1.0  # speed relative to the reference setting
    failure: str = ""


@dataclass(frozen=True)
class SettingSpeeds(Measured):
    """Speeds of the settings measured by `aam tune`, and the chosen settings."""

    runs: list[SettingSpeed] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  # chosen option -> value
    gain: float = 1.0  # gain of the chosen settings together
    samples: float | None = None  # samples per second with the chosen settings

    def verdict(self) -> PartVerdict:
        if failed := _failed_runs(self.runs, "runs"):
            return "wrong", failed
        best = max(self.runs, key=lambda run: run.samples or 0.0)
        fastest = f"{significant(best.samples or 0.0)} samples/s with {best.setting}"
        if not self.values or self.gain <= 1:
            return "as predicted", f"{fastest}; the defaults are kept, {len(self.runs)} runs."
        chosen = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return "as predicted", f"{fastest}; chosen: {chosen}, {self.gain:.2f} times as fast."


def _row(trial: Trial, expected: type[Row], **values: int) -> Row:
    """Take the fields of a record from a trial, its rates and `values`."""
    measured = asdict(trial.rates) if trial.rates else {}
    return convert({**asdict(trial), **measured, **values}, expected)


def _failed_runs(runs: Sequence[Peak | SettingSpeed], noun: str) -> str:
    failed = [f"{run.setting}: {run.failure}" for run in runs if run.failure]
    return f"{len(failed)} of {len(runs)} {noun} failed: {failed[0]}." if failed else ""


def measure_speed(context: Context) -> SettingSpeeds:
    """Measure the speed of settings by `aam tune`."""
    result = tuned(context)
    trials, chosen = [trial for trial in result.trials if trial.decision], result.chosen
    runs = [_row(trial, SettingSpeed) for trial in (result.default, *trials)]
    samples = chosen.rates.samples if chosen.rates else None
    speeds = {run.setting: run.samples for run in runs if run.samples}
    speeds |= {"chosen settings": samples} if samples else {}
    return SettingSpeeds(runs, dict(chosen.values), chosen.gain, samples, rates=speeds)


@dataclass(frozen=True)
class Copies(Measured):
    """Speeds of copies between the memories of an APU, in GB/s."""

    name: str

    def verdict(self) -> PartVerdict:
        speeds = ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in self.rates.items())
        return "as predicted", f"Copies: {speeds}."


def measure_unified(context: Context) -> Copies:
    """Measure copies between the memories of an APU, and within the GPU's memory."""
    if not context.gpu:
        raise NotPossible("There is no GPU.")
    copies = Copies(**call_in_child(_copies, timeout=context.left))
    if not copies.rates:
        raise NotPossible(f"{copies.name} has memory of its own.")
    return copies


def _copies() -> dict[str, Any]:
    import torch
    from torch.utils.benchmark import Timer

    properties = torch.cuda.get_device_properties(0)
    integrated = bool(getattr(properties, "is_integrated", False))
    if not integrated and "MI300A" not in properties.name:
        return {"name": properties.name}
    host = torch.ones(GIB // 4, dtype=torch.uint8)
    sources = {
        "pageable host to GPU": host,
        "pinned host to GPU": host.pin_memory(),
        "within the GPU": host.cuda(),
    }
    speeds = {}
    for name, source in sources.items():
        values = {"source": source, "target": torch.empty_like(source, device="cuda")}
        copies = Timer("target.copy_(source)", globals=values).timeit(5)
        speeds[name] = len(source) / copies.mean / 1e9
    return {"name": properties.name, "rates": speeds}


PARTS: dict[str, AcceptancePart] = {
    "host": AcceptancePart("GPUs, driver, image, modes and clocks", 120, measure_host),
    "launch": AcceptancePart("overhead, mounts and visible devices", 60, measure_launch),
    "check": AcceptancePart(
        "attention on every GPU: precision, time and memory", 900, measure_check
    ),
    "golden": AcceptancePart(
        "a small training, compared with the CPU and other images", 300, measure_golden
    ),
    "speed": AcceptancePart(
        "speed of each setting, and faster ones that train the same", 2400, measure_speed
    ),
    "memory": AcceptancePart("predicted and measured peaks", 2400, measure_memory),
    "unified": AcceptancePart("copies between the memories of host and APU", 120, measure_unified),
}
