"""Parts of the acceptance: commands of `aam` with a time limit, and verdicts about their results.

Nothing is measured here that a command measures: `aam check`, `golden`, `memory`, `tune` and
`profile` print or write JSON, short runs of `aam pretrain` log their steps. To add a part, write a
function that measures, one that evaluates, and an entry of `PARTS`; its name goes to `PartName` of
`aam.contract.options.commands.measure`.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aam.console import duration
from aam.contract.errors import Interrupted, first_few
from aam.contract.files import sha256
from aam.contract.gpus import GPU, one_gpu
from aam.contract.stop_file import VARIABLE as STOP_FILE
from aam.distributed.environment import read_environment
from aam.memory import GIB, memory_available
from aam.number_format import significant
from aam.performance.tune import CONTEXT, early_difference
from aam.performance.workload import (
    NONE,
    RunResult,
    call_in_child,
    child_process,
    rates,
    read_steps,
)
from aam.run_record import launched_by

GRACE = 10.0
"""Seconds from SIGTERM, with which a command ends its own runs, to SIGKILL."""
SLOW_LAUNCH = 30.0
"""Seconds from the launcher to the program: images of 10 GB start within 10 s from a local disk."""
SLOW_GPU = 0.7
"""Share of the median speed of all GPUs below which one is slow."""
PEAK_TOLERANCE = 0.1
"""Relative difference of a measured from a predicted peak that counts as wrong."""
MAX_DIFFERENCE = 1e-4
"""Relative difference of the losses of an epoch from those of one process, which rounding makes."""
SLOW_SCALING = 0.5
"""Samples per second of several GPUs below this share of their number times one are slow."""
ROUNDING = 1e-5
"""Difference of losses that sums in another order make, as atomic additions of a GPU have it."""
EXPANDABLE = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
"""Variable of the allocator, which PyTorch's builds for ROCm read too, and its value."""

Values = dict[str, Any]
Outcome = Literal["as predicted", "faster", "slower", "wrong", "not possible here", "failed"]
Verdict = tuple[Outcome, str]
"""Outcome of a comparison, and one sentence."""


class NotPossible(Exception):
    """A part that this host or image cannot measure, with the reason."""


class PartFailure(Exception):
    """A command of a part that failed or hangs, with the last line of its output."""


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
        accept: Collection[int] = (0,),
        variables: Mapping[str, str] = NONE,
        without: Collection[str] = (),
        steps: Path | None = None,
        after: int = 0,
        act: Callable[[subprocess.Popen[bytes]], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of `aam` and return its exit status and output.

        Args:
            arguments: its name and options.
            accept: exit statuses that are no failure; all if it is empty.
            variables, without: environment variables to set and to remove.
            steps: file in which a training logs its steps.
            after, act: number of steps after which the function is called with the process.
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
            how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            line = (message.strip() or "no output").splitlines()[-1]
            raise PartFailure(f"`aam {command}` {how}: {line.strip()[:300]}")
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


def measure_host(context: Context) -> Values:
    """Collect facts about host, GPUs and image."""
    facts: Values = call_in_child(_host, context.device, timeout=context.left)
    settings = gpu_settings() if facts["gpus"] else {}
    return facts | {"kernel": platform.release(), "settings": settings}


def _host(device: str) -> Values:
    # In the child process, since a process that holds a GPU takes memory of it.
    import torch

    from aam.numerics.device import arch_of, gpu_names, identify, processor, select_gpu

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


def evaluate_host(measured: Values) -> Verdict:
    """Name the GPUs, and those that others use; a host is as it is."""
    gpus = measured["gpus"]
    name = f"{len(gpus)} x {gpus[0]} ({measured['arch']})" if gpus else measured["cpu"]
    used = [f"{size / GIB:.1f} GiB of GPU {k}" for k, size in enumerate(measured["used"]) if size]
    sentence = f"{name}, torch {measured['torch']}."
    if len(set(gpus)) > 1:
        sentence += f" The GPUs differ: {', '.join(sorted(set(gpus)))}."
    if used:
        sentence += f" Others use {', '.join(used)}: figures are not those of GPUs of your own."
    return "as predicted", sentence


def measure_launch(context: Context) -> Values:
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
    return {
        "launcher": plan is not None,
        "overhead": overhead,
        "mounts": mounts,
        "visible": context.gpus,
        "planned": len(gpus) if isinstance(gpus, list) and context.gpu else None,
        "memory": memory_available(),
    }


def evaluate_launch(measured: Values) -> Verdict:
    """Compare the GPUs that are visible with those planned, and the overhead with its limit."""
    if not measured["launcher"]:
        return "not possible here", "The program was not started by aam-launch."
    visible, planned = measured["visible"], measured["planned"]
    if planned is not None and visible != planned:
        return "wrong", f"{visible} GPUs are visible, {planned} were planned."
    sentence = f"{visible} GPUs visible"
    if mounts := measured["mounts"]:
        sentence += f", {mounts['read-only']} mounts read-only, {mounts['read-write']} read-write"
    if (overhead := measured["overhead"]) is None:
        return "as predicted", f"{sentence}."
    outcome: Outcome = "slower" if overhead > SLOW_LAUNCH else "as predicted"
    return outcome, f"{sentence}; {overhead:.1f} s from the launcher to the program."


def _checked(context: Context, number: int, quick: bool) -> str:
    """Return the report of `aam check` on one GPU, in a full one also where a quick one does."""
    file = context.folder / f"check-{number}.json"
    if not context.known(file) or (json.loads(file.read_text())["quick"] and not quick):
        variables = one_gpu(os.environ, number) if context.gpu else NONE
        command = ("check", "--device", context.device, "--json", *(("--quick",) if quick else ()))
        file.write_text(context.aam(*command, accept=(0, 1), variables=variables).stdout)
    return file.read_text()


def measure_check(context: Context) -> Values:
    """Run `aam check` on each GPU by itself; quick on a CPU, whose kernels are few."""
    from aam.numerics.report import from_json, summary, worst

    devices: list[Values] = []
    for number in range(max(context.gpus, 1)):
        name = f"GPU {number}" if context.gpu else "CPU"
        try:
            report = from_json(_checked(context, number, context.small))
        except PartFailure as failure:  # one GPU that hangs leaves the others
            devices.append({"name": name, "verdict": "", "backends": {}, "failed": str(failure)})
            continue
        faults = {one: list(report.faults(one)) for one in report.backends}
        device = {
            "name": f"{name}, {report.identity['device']}",
            "quick": report.quick,
            "verdict": summary(report),
            "backends": {one: worst(report.of(one)) for one in report.backends},
            "faults": {one: names for one, names in faults.items() if names},
            "overhead": report.overhead,
        }
        devices.append(device)
    return {"devices": devices}


def evaluate_check(measured: Values) -> Verdict:
    """Name the devices with a wrong backend, and those that give no result."""
    devices = measured["devices"]
    if silent := [f"{one['name']}: {one['failed']}" for one in devices if one.get("failed")]:
        return "wrong", f"{first_few(silent)} gave no result."
    wrong_devices = []
    for one in devices:
        wrong = []
        for backend, outcome in one["backends"].items():
            if outcome in ("wrong", "crashed"):
                faults = ", ".join(one["faults"].get(backend, []))
                wrong.append(f"{backend} ({faults})" if faults else backend)
        if wrong:
            wrong_devices.append(f"{one['name']}: {', '.join(wrong)}")
    if not wrong_devices:
        return "as predicted", f"{devices[0]['verdict']}."
    others = ", and not on the other devices" if len(wrong_devices) < len(devices) else ""
    return "wrong", f"{'; '.join(wrong_devices)} wrong{others}."


def measure_golden(context: Context) -> Values:
    """Compare the golden case with that of the CPU and with those of the other images."""
    place = context.shared / "golden"
    own, cpu = (place / f"{context.folder.name}-{device}" for device in (context.device, "cpu"))
    for folder, device in ((cpu, "cpu"), (own, context.device)):
        if not (folder / "golden.safetensors").is_file():
            context.aam("golden", "generate", folder, "--device", device)
    others = {file.parent for file in place.glob("*/golden.safetensors")} - {own, cpu}
    comparisons = []
    for folder in (cpu, *sorted(others)):
        for precision in ("none", "auto") if context.gpu and folder == cpu else ("none",):
            how = ("--json", "--device", context.device, "--mixed-precision", precision)
            done = context.aam("golden", "compare", folder, *how, accept=(0, 1))
            compared = json.loads(done.stdout)
            shares = [
                (1e9 if value is None else value / row["allowed"] if row["allowed"] else 0.0)
                for row in compared["rows"] for value in row["difference"].values()
            ]  # fmt: skip
            comparison = {
                "with": "the CPU" if folder == cpu else folder.name,
                "precision": compared["here"]["precision"],
                "agree": compared["agree"],
                "verdict": compared["verdict"],
                "largest": max(shares, default=0.0),
            }
            comparisons.append(comparison)
    return {"comparisons": comparisons}


def evaluate_golden(measured: Values) -> Verdict:
    """Name the comparisons that differ by more than rounding."""
    comparisons = measured["comparisons"]
    if bad := [one for one in comparisons if not one["agree"]]:
        listed = [f"{one['with']} ({one['precision']}): {one['verdict']}" for one in bad]
        return "wrong", f"Differs from {'; '.join(listed)}"
    names = ", ".join(dict.fromkeys(one["with"] for one in comparisons))
    largest = max(one["largest"] for one in comparisons)
    return "as predicted", f"Equal to {names}; {largest:.0%} of the allowed rounding."


def measure_attention(context: Context) -> Values:
    """Return time and memory of each backend on each GPU, as `aam check` measures them."""
    each = [json.loads(_checked(context, k, False))["costs"] for k in range(max(context.gpus, 1))]
    costs: list[Values] = next(filter(None, each), [])
    if not costs:
        raise NotPossible("No backend was timed.")
    speeds = []
    for listed in each:
        times = [one["milliseconds"] for one in listed if _usual(one) and one["milliseconds"]]
        speeds.append(1000 / statistics.median(times) if times else 0.0)
    named = {
        f"{one['backend']}, {one['dtype']}, {one['shape']}"
        f"{', masked' if one['mask'] != 'none' else ''}": 1000 / one["milliseconds"]
        for one in costs if one["milliseconds"]
    }  # fmt: skip
    return {"costs": costs, "speeds": speeds, "rates": named}


def _usual(cost: Values) -> bool:
    return (cost["dtype"], cost["shape"]) == ("fp32", "sample encoder")


def evaluate_attention(measured: Values) -> Verdict:
    """Name a GPU that is slower than the others, else the fastest backend for each mask."""
    middle = statistics.median(measured["speeds"])
    for number, speed in enumerate(measured["speeds"]):
        if speed < SLOW_GPU * middle:
            share = speed / middle
            return "slower", f"GPU {number} computes at {share:.2f} of the median of all."
    fastest = []
    for mask, title in (("none", "without masks"), ("each", "with masks")):
        costs = [one for one in measured["costs"] if one["mask"] == mask and _usual(one)]
        if costs:
            best = min(costs, key=lambda one: one["milliseconds"])
            fastest.append(f"{best['backend']} {title} ({best['milliseconds']:.1f} ms)")
    return "as predicted", f"Fastest in fp32: {', '.join(fastest)}."


def tuned(context: Context, variables: Mapping[str, str] = NONE) -> Values:
    """Return the result of `aam tune`, which the parts `memory`, `speed` and `settings` share.

    With variables the given options alone are measured.
    """
    folder = context.folder / ("tuned-env" if variables else "tuned")
    if not context.known(folder / "tune.json"):
        size = "--steps 6 --warmup-steps 2 --rounds 1" if context.small else "--steps 25 --rounds 2"
        if variables:
            size += " --subjects threads"  # which has no settings on a GPU
        elif context.small:
            size += " --subjects workers batch-size"
        measured = ("--output-dir", folder, "--overwrite", *size.split(), *context.pretraining())
        context.aam("tune", *measured, variables=variables)
    result: Values = json.loads((folder / "tune.json").read_text())
    return result


def measure_memory(context: Context) -> Values:
    """Compare peaks that `aam memory` predicts with those of the runs of `aam tune`."""
    if not context.gpu:
        raise NotPossible("A CPU does not count allocations.")
    result = tuned(context)
    rows = []
    trials = [
        trial for trial in result["trials"]
        if trial["subject"] in ("batch-size", "recompute", "chunks") and trial["decision"]
    ]  # fmt: skip
    for trial in ({**result["default"], "setting": "as given", "options": {}}, *trials):
        words = [
            word for flag, value in trial["options"].items()
            for word in ([flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool)
                         else [flag, str(value)])
        ]  # fmt: skip
        done = context.aam("memory", "--json", *context.pretraining(), *words)
        peaks = {key: (trial["rates"] or {}).get(key) for key in ("allocated", "reserved", "rss")}
        row = {"setting": trial["setting"], "predicted": json.loads(done.stdout)["peak"], **peaks}
        rows.append({**row, "failure": trial["failure"]})
    # The variable of the allocator is recommended where it saves memory.
    segments = tuned(context, dict([EXPANDABLE]))["default"]["rates"]
    return {"runs": rows, "expandable": segments and segments["reserved"]}


def _failed_runs(runs: list[Values], noun: str) -> str:
    failed = [f"{one['setting']}: {one['failure']}" for one in runs if one["failure"]]
    return f"{len(failed)} of {len(runs)} {noun} failed: {failed[0]}." if failed else ""


def evaluate_memory(measured: Values) -> Verdict:
    """Name the setting whose peak differs most from the prediction, and those that failed."""
    runs = measured["runs"]
    if failed := _failed_runs(runs, "settings"):
        return "wrong", failed
    shares = {one["setting"]: one["allocated"] / one["predicted"] - 1 for one in runs}
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


def measure_speed(context: Context) -> Values:
    """Return the speed of each setting that `aam tune` measures."""
    result = tuned(context)
    rows = []
    for one in (result["default"], *(one for one in result["trials"] if one["decision"])):
        speeds = {key: (one["rates"] or {}).get(key) for key in ("samples", "spread", "wait")}
        rows.append({"setting": one["setting"], **speeds, "failure": one["failure"]})
    return {"runs": rows, "rates": {row["setting"]: row["samples"] for row in rows
                                    if row["samples"]}}  # fmt: skip


def evaluate_speed(measured: Values) -> Verdict:
    """Name the fastest setting, and a failure if all others are right."""
    if failed := _failed_runs(measured["runs"], "runs"):
        return "wrong", failed
    best = max(measured["runs"], key=lambda one: one["samples"])
    return "as predicted", f"{significant(best['samples'])} samples/s with {best['setting']}."


def measure_settings(context: Context) -> Values:
    """Return the settings that `aam tune` chose, which train the same network."""
    result = tuned(context)
    chosen = result["chosen"]
    names = ("subject", "setting", "decision", "gain")
    samples = (chosen["rates"] or {}).get("samples")
    return {
        "values": chosen["values"],
        "gain": chosen["gain"],
        "samples": samples,
        "trials": [{n: one[n] for n in names} for one in result["trials"] if one["decision"]],
        "rates": {} if samples is None else {"chosen settings": samples},
    }


def evaluate_settings(measured: Values) -> Verdict:
    """State what was chosen; a setting that changes the training is rejected, which is right."""
    values = measured["values"]
    if not values or measured["gain"] <= 1:
        number = len(measured["trials"])
        return "as predicted", f"The defaults are as fast; {number} settings tried."
    listed = ", ".join(f"{name} {value}" for name, value in values.items())
    return "as predicted", f"{listed}: {measured['gain']:.2f} times as fast."


def measure_unified(context: Context) -> Values:
    """Measure copies between the memories of an APU, beside those within the GPU's."""
    if not context.gpu:
        raise NotPossible("There is no GPU.")
    copies: Values = call_in_child(_copies, timeout=context.left)
    if not copies["rates"]:
        raise NotPossible(f"{copies['name']} has memory of its own.")
    return copies


def _copies() -> Values:
    import torch

    properties = torch.cuda.get_device_properties(0)
    integrated = bool(getattr(properties, "is_integrated", False))
    if not integrated and "MI300A" not in properties.name:
        return {"name": properties.name, "rates": {}}
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


def evaluate_unified(measured: Values) -> Verdict:
    """State the cost of a copy that unified memory would avoid."""
    listed = ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in measured["rates"].items())
    return "as predicted", f"Copies: {listed}."


def measure_profile(context: Context) -> Values:
    """Record some steps with `aam profile`."""
    folder = context.folder / "trace"
    number = ("--warmup-steps", 2, "--profile-steps", 3, "--overwrite")
    arguments = ("--json", "--output-dir", folder, *number, *context.pretraining())
    profile = json.loads(context.aam("profile", *arguments).stdout)
    (folder / "trace.json.gz").unlink()  # tens of MB
    kernels = [{**one, "name": one["name"][:200]} for one in profile["kernels"]]
    names = ("source", "limit", "advice", "idle", "wait", "shares")
    return {name: profile[name] for name in names} | {"kernels": kernels}


def evaluate_profile(measured: Values) -> Verdict:
    """State what limits the run, and the largest category."""
    name, share = max(measured["shares"].items(), key=lambda item: item[1])
    limit = f"{measured['limit'].capitalize()}, {measured['advice']}"
    return "as predicted", f"{limit}; most time is in {name} ({share:.0%})."


_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def measure_ranks(context: Context) -> Values:
    """Train with several ranks and with one process, and compare losses and speed.

    In a job of several ranks these train together; otherwise 2, 4 and 8 ranks on this node, as far
    as it has GPUs, and 2 on a CPU.
    """
    job, available = read_environment(os.environ), context.gpus if context.gpu else 2
    numbers = [number for number in (2, 4, 8) if number <= available]
    if job.world_size > 1:
        numbers = [job.world_size]
    if not numbers:
        raise NotPossible("There is one GPU.")
    log = context.folder / "collectives.txt"
    # What dropout draws depends on the rank.
    options = ("--epochs", 1 if context.small else 3, "--dropout", 0.0, "--overwrite")
    network = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}

    def run(
        name: str, *more: object, without: Collection[str] = ()
    ) -> tuple[RunResult, list[float]]:
        """Return the steps and the losses of the epochs."""
        folder, steps = context.folder / name, context.folder / f"{name}-{context.rank}.jsonl"
        words = (*context.pretraining(), *options, "--output-dir", folder, *more)
        context.aam(*words, variables=network, without=without, steps=steps)
        if context.rank:  # the first rank writes and compares
            return RunResult(()), []
        with (folder / "metrics.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        losses = [float(row[name]) for row in rows for name in ("train_loss", "val_loss")]
        return RunResult(*read_steps(steps)), losses

    together = []
    for number in numbers:
        ranks = () if job.world_size > 1 else ("--processes", number)
        # One run folder for all: the ranks compare their options.
        together.append(run(f"ranks-{number}", "--distributed", *ranks))
    if context.rank:
        return {"runs": []}
    one, single = run("one", without=_RANK_VARIABLES)
    text = log.read_text(errors="replace") if log.is_file() else ""
    lines = re.findall(r"NCCL INFO (.*(?:NET/|Using network).*)", text)
    warmup, runs = 2 if context.small else 5, []
    for number, (steps, losses) in zip(numbers, together, strict=True):
        difference = early_difference(losses, single)
        runs.append({
            "ranks": number,
            "nodes": -(-job.world_size // job.local_world_size),
            "agree": len(losses) == len(single) > 0 and difference <= MAX_DIFFERENCE,
            "difference": difference,
            "samples": rates([steps], warmup).samples,
            "one": rates([one], warmup).samples,
            "gpu": context.gpu,
            "network": [line.strip()[:300] for line in dict.fromkeys(lines)][:6],
        })  # fmt: skip
    return {"runs": runs, "rates": {f"{one['ranks']} ranks": one["samples"] for one in runs}}


def evaluate_ranks(measured: Values) -> Verdict:
    """Compare losses and speed of several ranks with one; the worst number of ranks is named."""
    verdicts: list[Verdict] = []
    for one in measured["runs"]:
        number, difference = one["ranks"], one["difference"]
        limit = f"losses differ by up to {difference:.1e}, limit {MAX_DIFFERENCE:.0e}"
        scaling = one["samples"] / one["one"]
        if not one["agree"]:
            return "wrong", f"{number} ranks train another network than one: {limit}."
        if one["gpu"] and scaling < SLOW_SCALING * number:
            network = "".join(f" ({line})" for line in one["network"][:1])
            sentence = f"{number} ranks are {scaling:.2f} times as fast as one{network}."
            verdicts.append(("slower", sentence))
        else:
            sentence = f"{number} ranks: {limit}; {scaling:.2f} times as fast as one."
            verdicts.append(("as predicted", sentence))
    if not verdicts:  # ranks other than the first have no result
        return "as predicted", "See rank 0."
    return next((one for one in verdicts if one[0] == "slower"), verdicts[-1])


def measure_interruption(context: Context) -> Values:
    """Stop a run by SIGTERM and resume it, and kill a rank of another run."""

    def train(name: str, *options: object, **how: Any) -> tuple[Any, list[float]]:
        """Return what a training printed with its status, and its losses."""
        folder, steps = context.folder / name, context.folder / f"{name}.jsonl"
        words = (*context.pretraining(), "--epochs", 2, "--output-dir", folder, *options)
        return context.aam(*words, steps=steps, **how), RunResult(*read_steps(steps)).losses

    killed: list[float] = []

    def kill_second_rank(process: subprocess.Popen[bytes]) -> None:
        # The environment of the second rank has its number and the log of this run.
        mark = {b"RANK=1", f"AAM_STEP_LOG={context.folder / 'killed.jsonl'}".encode()}
        pids = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # a process that has ended, or of another user
                if mark <= set(file.read_bytes().split(b"\0")):
                    pids.append(int(file.parent.name))
        if not pids:
            raise PartFailure("no process of rank 1")
        os.kill(min(pids), signal.SIGKILL)
        killed.append(time.monotonic())

    _, one = train("whole", "--overwrite")
    terminate = subprocess.Popen.terminate
    stopped, _ = train("stopped", "--overwrite", accept=(), after=3, act=terminate)
    resumed, two = train("stopped", "--resume-from", "auto", accept=())
    weights = [context.folder / f"{n}/model/transformer.safetensors" for n in ("whole", "stopped")]
    equal = all(file.is_file() for file in weights) and len(set(map(sha256, weights))) == 1
    # NCCL refuses two ranks on one GPU.
    device = context.device if context.gpus >= 2 else "cpu"
    options = ("--processes", 2, "--distributed", "--rank-timeout", 10, "--device", device)
    how: Values = {"accept": (), "after": 2, "act": kill_second_rank}
    broken, _ = train("killed", "--overwrite", *options, **how)
    return {
        "stop_status": stopped.returncode,
        "resume_status": resumed.returncode,
        "equal": resumed.returncode == 0 and equal,
        "difference": early_difference(two, one[-len(two) :]),
        "rank_status": broken.returncode,
        "rank_named": "rank 1 was killed by SIGKILL" in broken.stderr,
        "rank_seconds": time.monotonic() - killed[0],
    }


def evaluate_interruption(measured: Values) -> Verdict:
    """Compare exit statuses and weights with what the documents promise."""
    stopped, resumed, killed = (measured[f"{name}_status"] for name in ("stop", "resume", "rank"))
    difference = measured["difference"]
    holds = [
        (stopped == Interrupted.status, f"a stopped run ended with status {stopped}"),
        (resumed == 0, f"the resumed run ended with status {resumed}"),
        (
            measured["equal"] or difference <= ROUNDING,
            f"losses of the resumed run differ by up to {difference:.1e}",
        ),
        (killed == 128 + signal.SIGKILL, f"a run with a killed rank ended with status {killed}"),
        (measured["rank_named"], "the killed rank was not named"),
    ]
    if wrong := "; ".join(sentence for right, sentence in holds if not right):
        return "wrong", f"{wrong[0].upper()}{wrong[1:]}."
    seconds = f"a run with a killed rank names it and ends in {duration(measured['rank_seconds'])}"
    if not measured["equal"]:
        sentence = f"Equal up to rounding ({difference:.0e}), as its sums have no order"
        return "not possible here", f"{sentence}; {seconds}."
    return "as predicted", f"Stopped and resumed bit for bit; {seconds}."


@dataclass(frozen=True)
class AcceptancePart:
    """A part of the acceptance."""

    title: str  # what it measures, on the terminal and the page
    limit: float  # seconds after which it is ended
    measure: Callable[[Context], Values]  # runs commands and returns measured values as JSON
    evaluate: Callable[[Values], Verdict]  # compares them with what is expected


# fmt: off
PARTS: dict[str, AcceptancePart] = {
    "host": AcceptancePart("GPUs, driver, image, modes and clocks", 120,
                           measure_host, evaluate_host),
    "launch": AcceptancePart("overhead, mounts and visible devices", 60,
                             measure_launch, evaluate_launch),
    "check": AcceptancePart("attention backends and precisions on every GPU", 900,
                            measure_check, evaluate_check),
    "golden": AcceptancePart("a small training, compared with the CPU and other images", 300,
                             measure_golden, evaluate_golden),
    "attention": AcceptancePart("time and memory of attention by backend", 900,
                                measure_attention, evaluate_attention),
    "settings": AcceptancePart("faster settings that train the same network", 2400,
                               measure_settings, evaluate_settings),
    "speed": AcceptancePart("samples per second of each setting", 2400,
                            measure_speed, evaluate_speed),
    "memory": AcceptancePart("predicted and measured peaks", 2400,
                             measure_memory, evaluate_memory),
    "unified": AcceptancePart("copies between the memories of host and APU", 120,
                              measure_unified, evaluate_unified),
    "profile": AcceptancePart("longest kernels and what limits a run", 600,
                              measure_profile, evaluate_profile),
    "ranks": AcceptancePart("several processes on this node", 1200,
                            measure_ranks, evaluate_ranks),
    "interruption": AcceptancePart("stop, resume, and a killed rank", 900,
                                   measure_interruption, evaluate_interruption),
    "nodes": AcceptancePart("several processes on several nodes", 1200,
                            measure_ranks, evaluate_ranks),
}
# fmt: on
"""Name of a part -> what it measures; `PartName` of the options has the same names."""

SEVERAL_RANKS = ("nodes",)
"""Parts that several ranks measure together; one process measures the others."""
