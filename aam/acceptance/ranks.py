"""Parts `ranks` and `nodes`: losses, scaling, links and network of several processes.

Every rank runs `measure_nodes`; `measure_ranks` starts 1, 2, 4 and 8 of them on this node.
"""

from __future__ import annotations

import csv
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from aam.acceptance import result
from aam.acceptance.part import (
    Context,
    Evaluation,
    Measurement,
    NotPossible,
    PartFailure,
    last_line,
)
from aam.acceptance.result import Values
from aam.acceptance.speed import slow_ones
from aam.acceptance.workloads import HANGS, pretraining, product_rate, warmup
from aam.contract.options import arguments, specs
from aam.contract.options.device import DeviceOptions, ScaleOptions
from aam.distributed.collectives import Communicator
from aam.distributed.process_group import describe_network, process_group
from aam.numerics.device import choose_device, is_gpu
from aam.performance.measurement.bench import rates
from aam.performance.measurement.parity import early_difference
from aam.performance.measurement.workload import RunResult, read_steps

TOGETHER: dict[Any, Any] = {
    "ranks": int,
    "nodes": int,
    "agree": bool,
    "losses": str,
    "difference": float,
    "products": list[float],
    "links": list[float],
    "all_reduce": {str: float},
    "wire": (None, float),
    "network": list[str],
    "samples": (None, float),
    "one": (None, float),
    "rates": {str: float},
}
"""Schema of the measured values of the part `nodes`.

`agree`, `losses` and `difference` compare the losses of the epochs with those of one process;
`products` are TFLOP/s of each rank at the same time, `links` GB/s from rank k to the next one,
`all_reduce` GB/s of the bus by size of the message, `wire` those of the node's network interfaces;
`network` is what the library of collectives reports; `samples` and `one` are samples per second of
all ranks and of one process.
"""

RANKS = {"runs": [TOGETHER], "rates": {str: float}}
"""Schema of the measured values of the part `ranks`."""

COUNTS = (1, 2, 4, 8)
MOST_DIFFERENCE = 1e-4
"""Relative difference of the losses of an epoch from those of one process, which rounding makes."""
SLOW_LINK = 0.5
"""Share of the median of all links below which one is slow."""
SLOW_WIRE = 0.25
"""Share of the wire's rate below which an all-reduce over nodes is slow; RCCL reaches 0.8."""
SLOW_SCALING = 0.5
"""Samples per second of several ranks below this share of the ranks times one process are slow."""
_PORT_OF_RUN = 1
"""Distance of the ports of the measurement and of the training that it starts."""
_ONE_PROCESS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_NETWORK = re.compile(r"NCCL INFO (.*(?:NET/|Using network).*)")


def measure_ranks(context: Context) -> Measurement:
    """Start 1, 2, 4 and 8 ranks on this node, as far as it has GPUs; on a CPU 1 and 2."""
    most = context.gpus if context.gpu else 2
    if most < 2:
        raise NotPossible("There is one GPU.")
    runs: list[Values] = []
    speeds: dict[str, float] = {}
    expected: Values = {}
    for number in (count for count in COUNTS if 2 <= count <= most):
        folder = context.folder / str(number)
        # A run of this part by several ranks, as several nodes make it: there is one measurement.
        argv = ["acceptance", "--output-dir", str(folder), "--parts", "nodes"]
        argv += ["--device", context.device, "--size", "small" if context.small else "full"]
        boot = (
            f"import sys; sys.path[:] = {sys.path!r}; from aam.distributed.local_ranks import "
            f"launch; sys.exit(launch({number}, {argv!r}, 60.0))"
        )
        output = context.folder / f"{number}.txt"
        with output.open("wb") as stream:
            subprocess.run([sys.executable, "-c", boot], stdout=stream, stderr=stream)
        if not (folder / result.FILE).is_file():
            raise PartFailure(f"{number} ranks: {last_line(output)}")
        part = result.read(folder / result.FILE).runs[0].parts["nodes"]
        if part.verdict in ("failed", "not possible here"):
            raise PartFailure(f"{number} ranks: {part.summary}")
        runs.append(part.measured)
        expected = part.expected
        speeds |= {f"{number} ranks, {name}": v for name, v in part.measured["rates"].items()}
    return Measurement({"runs": runs, "rates": speeds}, expected)


def evaluate_ranks(measured: Values, expected: Values) -> Evaluation:
    """Evaluate each number of ranks as `nodes`; the first that is not as predicted is named."""
    verdicts = [evaluate_nodes(one, expected) for one in measured["runs"]]
    bad = [verdict for verdict in verdicts if verdict.outcome != "as predicted"]
    return min(bad or verdicts[-1:], key=lambda verdict: verdict.outcome != "wrong")


def measure_nodes(context: Context) -> Measurement:
    """Measure together with the other ranks: products, links, all-reduce, and a training."""
    log = context.folder / "collectives.txt"
    # NCCL and RCCL read these variables when the first communicator is made.
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_FILE", str(log))
    scale, device = ScaleOptions(distributed=True), DeviceOptions(device=context.device)  # type: ignore[arg-type]
    variables = dict(os.environ)
    with process_group(scale, device, 1 << 20) as ranks:
        place = choose_device(device)
        products = ranks.all_gather(product_rate(place, "fp32"))
        links, buses = _links(ranks, place), _all_reduce(ranks, place, context.small)
        one = _one_process(context, variables) if ranks.ranks.is_main else None
        ranks.barrier()
        together = _training(context, ranks)
        network = describe_network(os.environ, place.type) + _network(log)
    if one is None or together is None:
        return Measurement({"ranks": ranks.ranks.world_size})
    return _finding(context, ranks, products, links, buses, one, together, network)


def _finding(
    context: Context,
    ranks: Communicator,
    products: list[float],
    links: list[float],
    buses: dict[str, float],
    one: RunResult,
    together: RunResult,
    network: list[str],
) -> Measurement:
    failure = one.failure or together.failure
    if failure:
        raise PartFailure(f"a training of {ranks.ranks.world_size} ranks: {failure}")
    here, single = (_losses(folder) for folder in (_folder_of_all(context), context.folder / "one"))
    difference = early_difference(here, single)
    first = warmup(context)
    samples, alone = (rates([run], first).samples for run in (together, one))
    best = max(buses.values(), default=0.0)
    measured = {
        "ranks": ranks.ranks.world_size,
        "nodes": -(-ranks.ranks.world_size // ranks.ranks.local_world_size),
        "agree": len(here) == len(single) > 0 and difference <= MOST_DIFFERENCE,
        "losses": f"losses differ by up to {difference:.1e}, limit {MOST_DIFFERENCE:.0e}",
        "difference": difference,
        "products": products,
        "links": links,
        "all_reduce": buses,
        "wire": wire_rate(),
        "network": [line[:300] for line in network][:12],
        "samples": samples,
        "one": alone,
        "rates": {"all-reduce": best, "samples": samples},
    }
    expected = {"scaling": SLOW_SCALING if context.gpu else None, "gpu": context.gpu}
    return Measurement(measured, expected)


def _losses(folder: Path) -> list[float]:
    """Return the losses of each epoch, over the samples of all ranks."""
    with (folder / "metrics.csv").open(newline="") as stream:
        rows = csv.DictReader(stream)
        return [float(row[name]) for row in rows for name in ("train_loss", "val_loss")]


def _links(ranks: Communicator, place: torch.device) -> list[float]:
    """Return the rate from each rank to the next one in GB/s, one link after the other."""
    world, rank = ranks.ranks.world_size, ranks.ranks.rank
    size = (64 if is_gpu(place) else 4) << 20
    message = torch.ones(size, dtype=torch.uint8, device=place)
    found = []
    for source in range(world if world > 2 else 1):
        target, rate = (source + 1) % world, 0.0
        ranks.barrier()
        # The best of several: the first transfer of a pair also opens its connection.
        for _ in range(4):
            began = time.perf_counter()
            if rank == source:
                dist.send(message, target)
            elif rank == target:
                dist.recv(message, source)
            _synchronize(place)
            rate = max(rate, size / (time.perf_counter() - began) / 1e9)
        found.append(ranks.all_gather(rate)[target])
    return found


def _all_reduce(ranks: Communicator, place: torch.device, small: bool) -> dict[str, float]:
    """Return the rate of the bus in GB/s by size of the message, as nccl-tests computes it."""
    found = {}
    for mib in (1, 8) if small else (1, 16, 256):
        message = torch.ones(mib << 18, device=place)
        best = float("inf")
        # All ranks begin together, and the best counts: the first call also opens the connections.
        for _ in range(5):
            ranks.barrier()
            began = time.perf_counter()
            dist.all_reduce(message)
            _synchronize(place)
            best = min(best, time.perf_counter() - began)
        world = ranks.ranks.world_size
        # A ring sends 2 (n - 1) / n of the message over each link (PERFORMANCE.md of nccl-tests),
        # so that rates of different numbers of ranks compare.
        found[f"{mib} MiB"] = 2 * (world - 1) / world * (mib << 20) / best / 1e9
    return found


def _synchronize(place: torch.device) -> None:
    if is_gpu(place):
        torch.cuda.synchronize(place)


def _one_process(context: Context, variables: dict[str, str]) -> RunResult:
    """Run the training in one process, without the variables of a rank."""
    alone = {name: value for name, value in variables.items() if name not in _ONE_PROCESS}
    return _run(context, {}, alone, context.folder / "one")


def _training(context: Context, ranks: Communicator) -> RunResult | None:
    """Run the training on all ranks; None on ranks other than the first."""
    place = ranks.ranks
    variables = {
        **os.environ,
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "MASTER_PORT": str(place.main_port + _PORT_OF_RUN),
    }
    # One run folder for all: the ranks compare their options.
    found = _run(context, {"--distributed": True}, variables, _folder_of_all(context))
    ranks.barrier()
    return found if place.is_main else None


def _folder_of_all(context: Context) -> Path:
    return context.shared / context.run / "nodes-run"


def _run(
    context: Context, settings: dict[str, Any], variables: dict[str, str], folder: Path
) -> RunResult:
    """Run some epochs of a workload; the log is that of the first rank."""
    workload, epochs = pretraining(context), 1 if context.small else 3
    # What dropout draws depends on the rank.
    more = {"--epochs": epochs, "--dropout": 0.0, "--output-dir": folder, "--overwrite": True}
    given = {**workload.given, **settings, **more}
    argv = [sys.executable, "-m", "aam", workload.command]
    log, output = context.folder / f"{folder.name}.jsonl", context.folder / f"{folder.name}.txt"
    with output.open("wb") as stream:
        try:
            done = subprocess.run(
                [*argv, *arguments(specs(workload.options), given)],
                env={**variables, "AAM_STEP_LOG": str(log)}, stdin=subprocess.DEVNULL,
                stdout=stream, stderr=subprocess.STDOUT, timeout=HANGS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return RunResult((), f"no end after {HANGS:g} s")
    found, wrong = read_steps(log)
    failed = f"status {done.returncode}: {last_line(output)}" if done.returncode else ""
    return RunResult(found, failed or wrong)


def _network(log: Path) -> list[str]:
    """Return the lines in which the library of collectives names interface and plugin."""
    if not log.is_file():
        return []
    found = _NETWORK.findall(log.read_text(errors="replace"))
    return list(dict.fromkeys(line.strip() for line in found))[:6]


def wire_rate(root: Path = Path("/")) -> float | None:
    """Return the rate of all network interfaces that are up in GB/s; None if none states it.

    Args:
        root: root of the file system that is read.

    >>> wire_rate(Path("no-such-folder")) is None
    True
    """
    total = 0
    for file in root.glob("sys/class/net/*/speed"):
        try:
            # Mbit/s; -1 where the rate is unknown.
            total += max(0, int(file.read_text()))
        except (OSError, ValueError):  # lo, and interfaces that are down
            continue
    return total / 8000 or None


def evaluate_nodes(measured: Values, expected: Values) -> Evaluation:
    """Compare losses with one process, and ranks, links and bandwidth with each other.

    Args:
        measured: values of the schema `TOGETHER`.
        expected: least part of ideal scaling, None on a CPU, and whether GPUs were measured.
    """
    number = measured["ranks"]
    if not measured["agree"]:
        sentence = f"{number} ranks train another network than one: {measured['losses']}."
        return Evaluation("wrong", sentence)
    slow = [slow_ones(measured["products"], "rank"), _slow_link(measured["links"])]
    best = max(measured["all_reduce"].values(), default=0.0)
    wire = measured.get("wire")
    if expected.get("gpu") and measured["nodes"] > 1 and wire and best < SLOW_WIRE * wire:
        slow.append(f"An all-reduce over nodes has {best:.1f} of {wire:.0f} GB/s.")
    scaling = measured["samples"] / measured["one"] if measured["one"] else 0.0
    least = expected.get("scaling")
    if least and scaling < least * number:
        slow.append(f"{number} ranks are {scaling:.2f} times as fast as one.")
    named = [sentence for sentence in slow if sentence]
    if named:
        first = " ".join(named)
        return Evaluation("slower", f"{first[0].upper()}{first[1:]}")
    sentence = (
        f"{number} ranks: {measured['losses']}; {scaling:.2f} times as fast as one, all-reduce "
        f"{best:.3g} GB/s."
    )
    return Evaluation("as predicted", sentence)


def _slow_link(links: list[float]) -> str:
    """Return a sentence about the slowest link, if it is far below the others; two have none."""
    if len(links) < 3:
        return ""
    slowest, middle = min(range(len(links)), key=links.__getitem__), statistics.median(links)
    if links[slowest] >= SLOW_LINK * middle:
        return ""
    pair = f"ranks {slowest} and {(slowest + 1) % len(links)}"
    return f"The link of {pair} has {links[slowest]:.3g} GB/s, the others {middle:.3g}."
