"""Parts of the acceptance: commands of `aam` with a time limit, and verdicts about their results.

Nothing is measured here that a command measures: `aam check`, `golden`, `memory` and `tune` print
or write JSON, short runs of `aam pretrain` log their steps. To add a part, write a function that
measures, one that evaluates, and an entry of `PARTS` in `acceptance_run`; its name goes to
`PartName` of `aam.contract.options.commands.measure`.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from aam.contract.errors import first_few
from aam.contract.gpus import GPU, one_gpu
from aam.contract.records import read_json
from aam.contract.stop_file import VARIABLE as STOP_FILE
from aam.memory import GIB, memory_available
from aam.network.numerics.report import CheckReport, Cost
from aam.number_format import significant
from aam.run_record import launched_by
from aam.stack.tune import CONTEXT, Trial
from aam.stack.workload import NONE, call_in_child, child_process, read_steps

SLOW_LAUNCH = 30.0
"""Seconds from the launcher to the program: images of 10 GB start within 10 s from a local disk."""
SLOW_GPU = 0.7  # share of the median speed of all GPUs below which one is slow
PEAK_TOLERANCE = 0.1  # relative difference of a measured from a predicted peak that counts as wrong
EXPANDABLE = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
"""Variable of the allocator, which PyTorch's builds for ROCm read too, and its value."""

GRACE = 10.0  # seconds from SIGTERM, with which a command ends its own runs, to SIGKILL

Outcome = Literal["as predicted", "faster", "slower", "wrong", "not possible here", "failed"]
Verdict = tuple[Outcome, str]  # outcome of a comparison, and one sentence


class NotPossible(Exception):
    """A part that this host or image cannot measure, with the reason."""


class PartFailure(Exception):
    """A command of a part that failed or hangs, with the last line of its output."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Values that a part measured; `rates` are speeds by name, compared with a reference."""

    rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """Place of a measurement."""

    folder: Path  # of this image's run: what commands print, reports, trained networks
    shared: Path  # of all runs: the simulated study, golden folders
    device: str  # "cpu" or "cuda"
    gpus: int  # that this process sees
    small: bool  # a study and settings that a CPU of two cores computes in a minute
    started: float  # unix time at which `aam acceptance` started
    until: float  # time of the monotonic clock at which a command is ended
    overwrite: bool = False  # whether results of commands from before that are computed again
    rank: int = 0  # of this process among those that measure together

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
        accept: Collection[int] = (0,),  # exit statuses that are no failure; all if it is empty
        variables: Mapping[str, str] = NONE,
        without: Collection[str] = (),
        steps: Path | None = None,
        after: int = 0,
        act: Callable[[subprocess.Popen[bytes]], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of `aam`; return its exit status and output.

        `act` is called with the process `after` so many steps, which it logs in the file `steps`.
        """
        command = arguments[0]
        log = self.folder / f"{command}{f'-{self.rank}' if self.rank else ''}.txt"
        # The stop request of a job is for this process; its commands would end with it.
        removed = {STOP_FILE, *without}
        kept = {name: value for name, value in os.environ.items() if name not in removed}
        if steps is not None:
            steps.unlink(missing_ok=True)
            kept["AAM_STEP_LOG"] = str(steps)
        argv = [sys.executable, "-m", "aam", *map(str, arguments)]
        place = {"cwd": self.folder, "env": {**kept, **variables}}
        with (
            tempfile.TemporaryFile() as output,
            log.open("a+b") as errors,
            child_process(argv, GRACE, stdout=output, stderr=errors, **place) as child,
        ):
            begin = errors.tell()
            while act and steps and len(read_steps(steps)[0]) < after:
                if child.poll() is not None or not self.left:
                    raise PartFailure(f"`aam {command}` made less than {after} steps")
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

    def known(self, file: Path) -> bool:
        """Whether a file has the result of a command, which several parts share."""
        return file.is_file() and not (self.overwrite and file.stat().st_mtime < self.started)

    def pretraining(self) -> list[object]:
        """Return `pretrain` and its options on the simulated study, which is made once."""
        study = self.shared / ("study-small" if self.small else "study")
        while self.rank and self.left and not (study / "tree.nwk").is_file():
            time.sleep(0.2)  # the first rank makes it
        if not (study / "tree.nwk").is_file():
            size = "--samples 1100 --asvs 2000 --richness 185 --depth 10000 --subjects 40"
            if self.small:
                size = "--samples 64 --asvs 300 --length 100 --richness 40 --depth 2000"
            made = study.with_name(f"{study.name}-new")
            self.aam("example", "--output-dir", made, *size.split(), "--overwrite")
            made.rename(study)
        files = ("--table", study / "table.biom", "--tree", study / "tree.nwk")
        batch = 8 if self.small else 64
        return ["pretrain", *files, "--device", self.device, "--batch-size", batch]


@dataclass(frozen=True)
class HostFacts(Measured):
    """Host, GPUs and image."""

    gpus: list[str]  # names
    arch: str
    torch: str
    used: list[int]  # bytes of each GPU that others use
    cpu: str = ""
    cores: int = 0
    memory: int = 0
    gpu_memory: list[int] = field(default_factory=list)
    driver: str | None = None
    runtime: str | None = None
    kernel: str = ""
    settings: dict[str, list[str]] = field(default_factory=dict)  # of each GPU, by name


def measure_host(context: Context) -> HostFacts:
    """Collect facts about host, GPUs and image."""
    facts = HostFacts(**call_in_child(_host, context.device, timeout=context.left))
    return replace(facts, settings=gpu_settings() if facts.gpus else {})


def _host(device: str) -> dict[str, Any]:
    # In the child process, since a process that holds a GPU takes memory of it.
    import torch

    from aam.network.numerics.device import arch_of, gpu_names, identify, processor, select_gpu

    names = gpu_names() if device == GPU else []
    devices = [select_gpu(number) for number in range(len(names))] or [torch.device("cpu")]
    memory = [torch.cuda.mem_get_info(device) for device in devices] if names else []
    stack = identify(devices[0])
    return {
        "gpus": names,
        "arch": arch_of(devices[0]),
        "driver": stack.driver,
        "torch": stack.torch,
        "runtime": stack.runtime,
        "kernel": platform.release(),
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu_memory": [total for _, total in memory],
        # Without the context of this process, which is no use by others.
        "used": [max(0, total - free - CONTEXT) for free, total in memory],
    }


_SYSFS = {
    "compute partition": "current_compute_partition",
    "memory partition": "current_memory_partition",
    "vbios": "vbios_version",
    "power limit, µW": "hwmon/hwmon*/power1_cap",
    "performance level": "power_dpm_force_performance_level",
    "firmware of SMC": "fw_version/smc_fw_version",
    # With a line for each clock, the highest last.
    "shader clock": "pp_dpm_sclk",
    "memory clock": "pp_dpm_mclk",
}
_NVIDIA = "power.limit,clocks.max.sm,clocks.max.memory,vbios_version,mig.mode.current"


def gpu_settings(root: Path = Path("/")) -> dict[str, list[str]]:
    """Return modes, limits and clocks of each GPU by name, from sysfs or the vendor's tool."""
    settings: dict[str, list[str]] = {}
    for device in sorted(glob.glob(str(root / "sys/class/drm/card[0-9]*/device"))):
        for name, pattern in _SYSFS.items():
            for file in map(Path, glob.glob(f"{device}/{pattern}")):
                with suppress(OSError):  # a file that this user may not read
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


def evaluate_host(host: HostFacts) -> Verdict:
    """Name the GPUs, and those that others use; a host is as it is."""
    name = f"{len(host.gpus)} x {host.gpus[0]} ({host.arch})" if host.gpus else host.cpu
    used = [f"{size / GIB:.1f} GiB of GPU {k}" for k, size in enumerate(host.used) if size]
    sentence = f"{name}, torch {host.torch}."
    if len(set(host.gpus)) > 1:
        sentence += f" The GPUs differ: {', '.join(sorted(set(host.gpus)))}."
    if used:
        sentence += f" Others use {', '.join(used)}: figures are not those of GPUs of your own."
    return "as predicted", sentence


@dataclass(frozen=True)
class LaunchFacts(Measured):
    """What the launcher planned, and what this process sees of it."""

    launcher: bool
    visible: int = 0  # GPUs
    planned: int | None = None
    overhead: float | None = None  # seconds from the launcher to the program
    mounts: dict[str, int] | None = None  # number of each kind
    memory: int = 0


def measure_launch(context: Context) -> LaunchFacts:
    """Return what the launcher planned, and what this process sees of it."""
    plan = launched_by(os.environ)
    listed, gpus, started = ((plan or {}).get(name) for name in ("mounts", "gpus", "started"))
    mounts = None
    if isinstance(listed, list):
        writable = sum(isinstance(mount, list) and mount[-1:] == ["rw"] for mount in listed)
        mounts = {"read-only": len(listed) - writable, "read-write": writable}
    overhead = None
    if isinstance(started, int | float):
        # The clocks of two nodes may differ by more than a start takes.
        overhead = max(0.0, context.started - started)
    return LaunchFacts(
        plan is not None,
        context.gpus,
        len(gpus) if isinstance(gpus, list) and context.gpu else None,
        overhead,
        mounts,
        memory_available(),
    )


def evaluate_launch(launch: LaunchFacts) -> Verdict:
    """Compare the GPUs that are visible with those planned, and the overhead with its limit."""
    if not launch.launcher:
        return "not possible here", "The program was not started by aam-launch."
    if launch.planned is not None and launch.visible != launch.planned:
        return "wrong", f"{launch.visible} GPUs are visible, {launch.planned} were planned."
    sentence = f"{launch.visible} GPUs visible"
    if mounts := launch.mounts:
        sentence += f", {mounts['read-only']} mounts read-only, {mounts['read-write']} read-write"
    if launch.overhead is None:
        return "as predicted", f"{sentence}."
    outcome: Outcome = "slower" if launch.overhead > SLOW_LAUNCH else "as predicted"
    return outcome, f"{sentence}; {launch.overhead:.1f} s from the launcher to the program."


@dataclass(frozen=True)
class CheckedDevice:
    """Result of `aam check` on a device."""

    name: str
    verdict: str = ""
    backends: dict[str, str] = field(default_factory=dict)  # outcome of each
    faults: dict[str, list[str]] = field(default_factory=dict)  # of the backends that have any
    overhead: int | None = None  # bytes of a GPU that are no tensors
    speed: float | None = None  # median passes per second of the sample encoder in fp32
    failed: str = ""  # why there is no result


@dataclass(frozen=True)
class CheckedDevices(Measured):
    """Results of `aam check` on each device, and the costs of the backends on the first."""

    devices: list[CheckedDevice]
    costs: list[Cost] = field(default_factory=list)


def measure_check(context: Context) -> CheckedDevices:
    """Run `aam check` on each GPU by itself."""
    devices: list[CheckedDevice] = []
    costs: tuple[Cost, ...] = ()
    for number in range(max(context.gpus, 1)):
        name = f"GPU {number}" if context.gpu else "CPU"
        variables = one_gpu(os.environ, number) if context.gpu else NONE
        command = ("check", "--device", context.device, "--json")
        try:
            done = context.aam(*command, accept=(0, 1), variables=variables)
        except PartFailure as failure:  # one GPU that hangs leaves the others
            devices.append(CheckedDevice(name, failed=str(failure)))
            continue
        report = CheckReport.from_json(done.stdout)
        costs = costs or report.costs
        usual = [1000 / cost.milliseconds for cost in report.costs if _is_usual(cost)]
        faults = {backend: list(report.faults(backend)) for backend in report.backends}
        device = CheckedDevice(
            f"{name}, {report.identity['device']}",
            report.summary,
            report.outcomes,
            {backend: names for backend, names in faults.items() if names},
            report.overhead,
            statistics.median(usual) if usual else None,
        )
        devices.append(device)
    rates = {
        f"{cost.backend}, {cost.dtype}, {cost.shape}"
        f"{', masked' if cost.mask != 'none' else ''}": 1000 / cost.milliseconds
        for cost in costs if cost.milliseconds
    }  # fmt: skip
    return CheckedDevices(devices, list(costs), rates=rates)


def _is_usual(cost: Cost) -> bool:
    return (cost.dtype, cost.shape) == ("fp32", "sample encoder") and cost.milliseconds > 0


def evaluate_check(check: CheckedDevices) -> Verdict:
    """Name devices that give no result, a wrong backend, and a GPU slower than the others."""
    if silent := [f"{device.name}: {device.failed}" for device in check.devices if device.failed]:
        return "wrong", f"{first_few(silent)} gave no result."
    wrong_devices = []
    for device in check.devices:
        wrong = []
        for backend, outcome in device.backends.items():
            if outcome in ("wrong", "crashed"):
                faults = ", ".join(device.faults.get(backend, []))
                wrong.append(f"{backend} ({faults})" if faults else backend)
        if wrong:
            wrong_devices.append(f"{device.name}: {', '.join(wrong)}")
    if wrong_devices:
        several = len(wrong_devices) < len(check.devices)
        elsewhere = ", and not on the other devices" if several else ""
        return "wrong", f"{'; '.join(wrong_devices)} wrong{elsewhere}."
    # A device without a timed backend has no speed, and is no slow one.
    speeds = {device.name: device.speed for device in check.devices if device.speed is not None}
    middle = statistics.median(speeds.values()) if speeds else 0.0
    for name, speed in speeds.items():
        if speed < SLOW_GPU * middle:
            return "slower", f"{name} computes at {speed / middle:.2f} of the median of all."
    fastest = []
    for mask, title in (("none", "without masks"), ("each", "with masks")):
        if costs := [cost for cost in check.costs if cost.mask == mask and _is_usual(cost)]:
            best = min(costs, key=lambda cost: cost.milliseconds)
            fastest.append(f"{best.backend} {title} ({best.milliseconds:.1f} ms)")
    in_fp32 = f" Fastest in fp32: {', '.join(fastest)}." if fastest else ""
    return "as predicted", f"{check.devices[0].verdict}.{in_fp32}"


@dataclass(frozen=True)
class GoldenComparison:
    """Comparison of golden cases."""

    reference: str  # the CPU, or an image
    precision: str
    agree: bool
    verdict: str
    largest: float  # difference as a share of the allowed rounding


@dataclass(frozen=True)
class GoldenComparisons(Measured):
    """Comparisons of the golden case with those of the CPU and of other images."""

    comparisons: list[GoldenComparison]


def measure_golden(context: Context) -> GoldenComparisons:
    """Compare the golden case with that of the CPU and with those of the other images."""
    place = context.shared / "golden"
    here, cpu = (place / f"{context.folder.name}-{device}" for device in (context.device, "cpu"))
    for folder, device in ((cpu, "cpu"), (here, context.device)):
        if not (folder / "golden.safetensors").is_file():
            context.aam("golden", "generate", folder, "--device", device)
    images = {file.parent for file in place.glob("*/golden.safetensors")} - {here, cpu}
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
            comparison = GoldenComparison(
                "the CPU" if folder == cpu else folder.name,
                compared["here"]["precision"],
                compared["agree"],
                compared["verdict"],
                max(shares, default=0.0),
            )
            comparisons.append(comparison)
    return GoldenComparisons(comparisons)


def evaluate_golden(golden: GoldenComparisons) -> Verdict:
    """Name the comparisons that differ by more than rounding."""
    if bad := [comparison for comparison in golden.comparisons if not comparison.agree]:
        listed = [
            f"{comparison.reference} ({comparison.precision}): {comparison.verdict}"
            for comparison in bad
        ]
        return "wrong", f"Differs from {'; '.join(listed)}"
    names = ", ".join(dict.fromkeys(comparison.reference for comparison in golden.comparisons))
    largest = max(comparison.largest for comparison in golden.comparisons)
    return "as predicted", f"Equal to {names}; {largest:.0%} of the allowed rounding."


@dataclass(frozen=True)
class TuneResult:
    """Content of tune.json."""

    default: Trial
    trials: tuple[Trial, ...]
    chosen: Trial


def tuned(context: Context, variables: Mapping[str, str] = NONE) -> TuneResult:
    """Return the result of `aam tune`, which the parts `memory` and `speed` share."""
    folder = context.folder / ("tuned-env" if variables else "tuned")
    if not context.known(folder / "tune.json"):
        size = "--steps 6 --warmup-steps 2 --rounds 1" if context.small else "--steps 25 --rounds 2"
        if variables:
            size += " --subjects threads"  # which has no settings on a GPU
        elif context.small:
            size += " --subjects workers batch-size"
        measured = ("--output-dir", folder, "--overwrite", *size.split(), *context.pretraining())
        context.aam("tune", *measured, variables=variables)
    return read_json(folder / "tune.json", TuneResult, "result of `aam tune`")


@dataclass(frozen=True)
class Peak:
    """Peaks of memory of a setting, in bytes; None without a run that ended."""

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


def measure_memory(context: Context) -> Peaks:
    """Compare peaks that `aam memory` predicts with those of the runs of `aam tune`."""
    if not context.gpu:
        raise NotPossible("A CPU does not count allocations.")
    result = tuned(context)
    runs = []
    trials = [
        trial for trial in result.trials
        if trial.subject in ("batch-size", "recompute", "chunks") and trial.decision
    ]  # fmt: skip
    for trial in (replace(result.default, setting="as given", options={}), *trials):
        words = [
            word for flag, value in trial.options.items()
            for word in ([flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool)
                         else [flag, str(value)])
        ]  # fmt: skip
        done = context.aam("memory", "--json", *context.pretraining(), *words)
        peak = Peak(trial.setting, json.loads(done.stdout)["peak"], failure=trial.failure)
        if rates := trial.rates:
            peak = replace(peak, allocated=rates.allocated, reserved=rates.reserved, rss=rates.rss)
        runs.append(peak)
    # The variable of the allocator is recommended where it saves memory.
    segments = tuned(context, dict([EXPANDABLE])).default.rates
    return Peaks(runs, segments.reserved if segments else None)


def evaluate_memory(peaks: Peaks) -> Verdict:
    """Name the setting whose peak differs most from the prediction, and those that failed."""
    if failed := _failed_runs(peaks.runs, "settings"):
        return "wrong", failed
    shares = {
        run.setting: run.allocated / run.predicted - 1
        for run in peaks.runs if run.allocated is not None
    }  # fmt: skip
    name = max(shares, key=lambda setting: abs(shares[setting]))
    bad = sum(abs(share) > PEAK_TOLERANCE for share in shares.values())
    if not bad:
        within = f"{abs(shares[name]):.1%} of the prediction"
        return "as predicted", f"{len(shares)} peaks are within {within}."
    more = "more" if shares[name] > 0 else "less"
    return "wrong", (
        f"{name} takes {abs(shares[name]):.0%} {more} than predicted; {bad} of {len(shares)} peaks "
        f"differ by more than {PEAK_TOLERANCE:.0%}."
    )


@dataclass(frozen=True)
class SettingSpeed:
    """Speed of a setting; None without a run that ended."""

    setting: str
    samples: float | None = None  # per second
    spread: float | None = None
    wait: float | None = None
    decision: str | None = None
    gain: float = 1.0  # times as fast as the setting that it is compared with
    failure: str = ""


@dataclass(frozen=True)
class SettingSpeeds(Measured):
    """Speeds of the settings that `aam tune` measured, and what it chose."""

    runs: list[SettingSpeed] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  # of the options that it chose
    gain: float = 1.0  # of them together
    samples: float | None = None  # per second, with them


def _failed_runs(runs: Sequence[Peak | SettingSpeed], noun: str) -> str:
    failed = [f"{run.setting}: {run.failure}" for run in runs if run.failure]
    return f"{len(failed)} of {len(runs)} {noun} failed: {failed[0]}." if failed else ""


def measure_speed(context: Context) -> SettingSpeeds:
    """Return the speed of each setting that `aam tune` measures, and its choice."""
    result = tuned(context)
    runs, chosen = [], result.chosen
    for trial in (result.default, *(trial for trial in result.trials if trial.decision)):
        speed = SettingSpeed(
            trial.setting, decision=trial.decision, gain=trial.gain, failure=trial.failure
        )
        if rates := trial.rates:
            speed = replace(speed, samples=rates.samples, spread=rates.spread, wait=rates.wait)
        runs.append(speed)
    samples = chosen.rates.samples if chosen.rates else None
    named = {run.setting: run.samples for run in runs if run.samples}
    named |= {"chosen settings": samples} if samples else {}
    return SettingSpeeds(runs, dict(chosen.values), chosen.gain, samples, rates=named)


def evaluate_speed(speeds: SettingSpeeds) -> Verdict:
    """Name the chosen settings, the fastest setting, or a failure; a rejected setting is right."""
    if failed := _failed_runs(speeds.runs, "runs"):
        return "wrong", failed
    best = max(speeds.runs, key=lambda run: run.samples or 0.0)
    fastest = f"{significant(best.samples or 0.0)} samples/s with {best.setting}"
    if not speeds.values or speeds.gain <= 1:
        return "as predicted", f"{fastest}; the defaults are kept, {len(speeds.runs)} runs."
    listed = ", ".join(f"{name} {value}" for name, value in speeds.values.items())
    return "as predicted", f"{fastest}; chosen: {listed}, {speeds.gain:.2f} times as fast."


@dataclass(frozen=True)
class Copies(Measured):
    """Copies between the memories of an APU, in GB/s."""

    name: str


def measure_unified(context: Context) -> Copies:
    """Measure copies between the memories of an APU, beside those within the GPU's."""
    if not context.gpu:
        raise NotPossible("There is no GPU.")
    copies = Copies(**call_in_child(_copies, timeout=context.left))
    if not copies.rates:
        raise NotPossible(f"{copies.name} has memory of its own.")
    return copies


def _copies() -> dict[str, Any]:
    import torch

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
        target, best = torch.empty_like(source, device="cuda"), 0.0
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize()
            best = max(best, len(source) / (time.perf_counter() - began) / 1e9)
        speeds[name] = best
    return {"name": properties.name, "rates": speeds}


def evaluate_unified(copies: Copies) -> Verdict:
    """State the cost of a copy that unified memory would avoid."""
    listed = ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in copies.rates.items())
    return "as predicted", f"Copies: {listed}."
