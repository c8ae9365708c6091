"""Benchmark of several processes, `make bench-scale`: speed, memory of a rank, transferred bytes.

    speed     one process with two threads, one with one, and two with one thread each (gloo)
    memory    peak of a rank above its memory before the network, DDP and FSDP, width 768
    bytes     received by a rank in a step, by formula and as the kernel counts them (TCP_INFO)
    batches   seconds to make a global batch, which every rank does itself
    estimate  time of a step on 4 and 16 MI300A by these formulas
    gpu       one GPU, if there is one: samples per second and share of the bf16 peak

Every measurement runs in new processes. `--json FILE` writes the figures.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SEED = 42
SMALL = {"dim": 64, "heads": 4, "layers": 2}
WIDE = {"dim": 768, "heads": 12, "layers": 4}
TCP_INFO_RECEIVED = 128
"""Offset of tcpi_bytes_received in struct tcp_info, include/uapi/linux/tcp.h."""

PEAK = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "MI300A": 980e12, "MI300X": 1307e12}
"""Dense bf16 operations per second, from the vendors' data sheets."""

Found = dict[str, float]


def main() -> None:
    """Measure and print."""
    console = Console(width=110)
    with tempfile.TemporaryDirectory() as folder:
        study = simulate(Path(folder) / "study")
        found: dict[str, Found] = {
            "1 process, 2 threads": ranks(1, 2, study, SMALL, "speed", 32, 8),
            "1 process, 1 thread": ranks(1, 1, study, SMALL, "speed", 32, 8),
            "2 processes, DDP": ranks(2, 1, study, SMALL, "ddp", 32, 8),
            "2 processes, FSDP": ranks(2, 1, study, SMALL, "fsdp", 32, 8),
            "768: 1 process": ranks(1, 2, study, WIDE, "speed", 2, 2),
            "768: 2 processes, DDP": ranks(2, 1, study, WIDE, "ddp", 2, 2),
            "768: 2 processes, FSDP": ranks(2, 1, study, WIDE, "fsdp", 2, 2),
        }
        console.print(measured_table(found))
        made = batches(study)
        each = [f"{n} samples {s:.3f} s, {u:.0f} distinct ASVs" for n, (s, u) in made.items()]
        console.print(f"To make a batch of {'; '.join(each)}")
        console.print(estimate())
        gpu = one_gpu(study)
        console.print(gpu or "No GPU here: nothing measured on one.")
    if "--json" in sys.argv:
        target = Path(sys.argv[sys.argv.index("--json") + 1])
        content = {"ways": found, "batches": made}
        target.write_text(json.dumps(content, indent=2) + "\n")


def simulate(folder: Path) -> Path:
    """Make a study of 400 samples and 2,000 ASVs of 150 nt."""
    from aam.contract.options.commands.studies import Example
    from aam.data.simulation import simulate as make
    from aam.data.simulation import write_study

    options = Example(
        output_dir=folder,
        samples=400,
        subjects=80,
        seed=SEED,
        asvs=2000,
        richness=185,
        depth=10_000,
    )
    write_study(make(options), options)
    return folder


def ranks(
    size: int, threads: int, study: Path, shape: dict[str, int], how: str, batch: int, steps: int
) -> Found:
    """Take steps in `size` processes; return the mean over them."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue: Any = context.Queue()
    processes = []
    if shape is WIDE:  # glibc returns large blocks at once; otherwise its heap determines the peak
        os.environ |= {
            "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
            "MALLOC_TRIM_THRESHOLD_": str(1 << 20),
        }
    for rank in range(size):
        variables = {"OMP_NUM_THREADS": str(threads)}
        if size > 1:
            variables |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
        args = (queue, variables, threads, study, shape, how, batch, steps)
        processes.append(context.Process(target=_one, args=args))
        processes[-1].start()
    results = [queue.get(timeout=1800) for _ in processes]
    for process in processes:
        process.join()
    return {name: sum(result[name] for result in results) / size for name in results[0]}


def _one(
    queue: Any,
    variables: dict[str, str],
    threads: int,
    study: Path,
    shape: dict[str, int],
    how: str,
    batch: int,
    steps: int,
) -> None:
    os.environ.update(variables)
    import torch

    from aam.contract.options.groups import DeviceOptions, ScaleOptions
    from aam.network.distributed.process_group import process_group

    torch.set_num_threads(threads)
    scale = ScaleOptions(distributed=how == "ddp", fsdp=how == "fsdp")
    with process_group(scale, DeviceOptions(device="cpu"), batch) as communicator:
        queue.put(_steps(communicator, scale, study, shape, batch, steps))


def _steps(
    communicator: Any, scale: Any, folder: Path, shape: dict[str, int], batch: int, steps: int
) -> Found:
    """Train for a few steps; the first two are not counted."""
    import numpy as np
    import torch

    from aam.contract.options.commands.train import Pretrain
    from aam.contract.options.groups import (
        DeviceOptions,
        LoopOptions,
        MaskOptions,
        ModelOptions,
        PhylogenyOptions,
        RunOptions,
        SampleOptions,
        SpeedOptions,
        SplitOptions,
        TableOptions,
    )
    from aam.network.batches import TrainingBatches
    from aam.network.inference.stored_networks import DiversityScale, ModelConfig
    from aam.network.model.shape import NetworkShape
    from aam.network.training.configuration import Runtime
    from aam.network.training.fit import fit
    from aam.network.training.module import LossWeights, TrainingModule
    from aam.network.training.observers import Observer
    from aam.pipeline.run_folder import no_record

    loaded, plan = _load(folder)
    loop = LoopOptions(epochs=1, batch_size=batch, seed=SEED)
    sizes = NetworkShape(150, shape["dim"], shape["heads"], shape["layers"], 5)
    before = _resident()
    torch.manual_seed(SEED)
    config = ModelConfig("pretrain", sizes, "unweighted", plan, DiversityScale(), None, {})
    network = config.network()

    class Timed(Observer):
        """Record time and bytes at the start of every step, and the ASVs of batches."""

        def __init__(self) -> None:
            self.notes: list[tuple[float, int]] = []
            self.asvs = 0

        def batch_begins(self, batch: Any) -> None:
            self.notes.append((time.perf_counter(), received()))
            if len(self.notes) > 2:
                self.asvs += len(batch.asvs_U)

    timed, task = Timed(), TrainingModule(network, LossWeights(), loop, steps + 3)
    rows = np.flatnonzero(loaded.reads >= plan.rarefy_depth)[: batch * (steps + 3)]
    training = TrainingBatches(loaded, plan, rows, batch, fresh_reads=True)
    with tempfile.TemporaryDirectory() as out:
        options = Pretrain(
            TableOptions(table=folder), PhylogenyOptions(), RunOptions(Path(out)),
            SampleOptions(), ModelOptions(), MaskOptions(), SplitOptions(), loop,
            SpeedOptions(), DeviceOptions(), scale,
        )  # fmt: skip
        runtime = Runtime(torch.device("cpu"), communicator=communicator)
        fit(task, config, training, None, options, runtime, no_record, more=[timed])
    (begin, first), (end, last) = timed.notes[2], timed.notes[2 + steps]
    return {
        "samples/s": batch * steps / (end - begin),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before,
        "received": (last - first) / steps,
        "asvs": timed.asvs / (len(timed.notes) - 2),
        "parameters": float(sum(p.numel() for p in config.network().parameters())),
        "dim": float(shape["dim"]),
        "batch": float(batch),
        "ranks": float(communicator.ranks.world_size),
        "sharded": float(scale.fsdp),
    }


def _load(folder: Path) -> tuple[Any, Any]:
    from aam.contract.options.groups import PhylogenyOptions, TableOptions
    from aam.data.study import load_study
    from aam.network.batches import BatchPlan

    loaded = load_study(
        TableOptions(table=folder / "table.biom"), PhylogenyOptions(tree=folder / "tree.nwk")
    )
    plan = BatchPlan(SEED, 5000, 1024, mask_ratio=0.15, metric="unweighted")
    return loaded, plan


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def received() -> int:
    """Return the bytes that the TCP connections of this process received, by the kernel's count."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as line:
                if line.type == socket.SOCK_STREAM and line.family != socket.AF_UNIX:
                    info = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, TCP_INFO_RECEIVED)[0]
        except OSError:  # a descriptor that is gone, or a socket of another kind
            continue
    return total


def expected(way: Found, gloo: bool = True, element: int = 4) -> Found:
    """Return the bytes that a rank receives in a step, by formula.

    With R ranks, U distinct ASVs, B samples, width D, P parameters and e bytes an element, and
    f = (R - 1) / R:

        gathering   vectors of ASVs and samples, forward f (U + B) D e; backward the same by
                    reduce-scatter (NCCL), twice that by all-reduce (gloo)
        gradients   DDP 2 f 4 P (ring all-reduce); FSDP 3 f 4 P (gathered twice, scattered once;
                    gloo scatters by all-reduce: 4), what is outside the layers being gathered once
    """
    f = (way["ranks"] - 1) / way["ranks"]
    rows = (way["asvs"] + way["batch"]) * way["dim"] * element
    times = (4 if gloo else 3) if way["sharded"] else 2
    return {
        "gathering": f * rows * (3 if gloo else 2),
        "gradients": f * 4 * way["parameters"] * times,
    }


def measured_table(found: dict[str, Found]) -> Table:
    """Return the table of speed, memory and bytes."""
    base = found["1 process, 2 threads"]["samples/s"]
    table = Table(title="Steps of pretraining on this machine's two cores")
    columns = ("way", "samples/s", "against 2 threads", "peak of a rank, MiB",
               "received a step, MB", "gathering by formula", "gradients by formula")  # fmt: skip
    for name in columns:
        table.add_column(name, justify="left" if name == "way" else "right", no_wrap=name == "way")
    for name, way in found.items():
        small = way["dim"] == SMALL["dim"]
        formula = expected(way)
        table.add_row(
            name, f"{way['samples/s']:.2f}", f"{way['samples/s'] / base:.2f}" if small else "",
            f"{way['peak'] / 2**20:.0f}", f"{way['received'] / 1e6:.2f}",
            f"{formula['gathering'] / 1e6:.2f}", f"{formula['gradients'] / 1e6:.2f}",
        )  # fmt: skip
    return table


def batches(study: Path) -> dict[int, tuple[float, float]]:
    """Return the seconds to make a batch and its distinct ASVs, by number of samples."""
    import numpy as np

    from aam.network.batches import make_batch

    loaded, plan = _load(study)
    deep = np.flatnonzero(loaded.reads >= plan.rarefy_depth)
    found = {}
    for samples in (16, 64, 256):
        begin = time.perf_counter()
        for k in range(3):
            batch = make_batch(loaded, plan, deep[:samples], k, k)
        found[samples] = ((time.perf_counter() - begin) / 3, float(len(batch.asvs_U)))
    return found


def flops(asvs: float, dim: int, layers: int, tokens: int = 30) -> float:
    """Return the operations of a training step: 6 for each weight and token, and attention."""
    return asvs * layers * (6 * 12 * dim**2 * tokens + 12 * tokens**2 * dim)


def estimate(dim: int = 768, layers: int = 4, share: float = 0.3) -> Table:
    """Estimate a step on MI300A: compute at a share of the peak, then communication.

    80 GB/s between the four of a node, 20 GB/s for each between nodes (Slingshot, 200 Gb/s each):
    assumptions, not measurements. bf16 for what is gathered, fp32 gradients.
    """
    table = Table(title=f"Estimate: width {dim}, {layers} layers, {share:.0%} of bf16 peak")
    for name in ("MI300A", "global batch", "distinct ASVs", "compute, ms", "gathering, ms",
                 "gradients, ms", "efficiency"):  # fmt: skip
        table.add_column(name, justify="right")
    weights = 2 * layers * 12 * dim**2
    for size, bandwidth in ((4, 80e9), (16, 20e9)):
        for each in (16, 64):
            batch, asvs = each * size, 200 * each * size * 0.5
            compute = flops(asvs, dim, layers) / size / (share * PEAK["MI300A"])
            way = {"ranks": size, "asvs": asvs, "batch": batch, "dim": dim, "sharded": 0,
                   "parameters": weights}  # fmt: skip
            moved = expected(way, gloo=False, element=2)
            gather, grads = moved["gathering"] / bandwidth, moved["gradients"] / bandwidth
            table.add_row(
                str(size), str(batch), f"{asvs:.0f}", f"{1e3 * compute:.1f}",
                f"{1e3 * gather:.1f}", f"{1e3 * grads:.1f}",
                f"{compute / (compute + gather + grads):.0%}",
            )  # fmt: skip
    return table


def one_gpu(study: Path) -> Table | None:
    """Return speed and share of peak of the nucleotide encoder on one GPU, if there is one."""
    import torch

    if not torch.cuda.is_available():
        return None
    from aam.network.model.network import Encoder
    from aam.network.model.shape import NetworkShape

    name = torch.cuda.get_device_name(0)
    peak = next((value for chip, value in PEAK.items() if chip in name), None)
    table = Table(title=f"Nucleotide encoder, width 768, 4 layers, forward and backward: {name}")
    for column in ("precision", "compiled", "ASVs", "ASVs/s", "share of bf16 peak", "GiB"):
        table.add_column(column, justify="right")
    for compiled in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            encoder = Encoder(NetworkShape(150, 768, 12, 4, 5), "unweighted").nucleotides.cuda()
            if compiled:
                encoder.compile(dynamic=True)
            for asvs in (512, 2048, 8192, 32768):
                try:
                    rate, memory = _encode(encoder, asvs, dtype)
                except torch.OutOfMemoryError:
                    break
                share = flops(rate, 768, 4) / peak if peak else float("nan")
                precision = str(dtype).removeprefix("torch.")
                table.add_row(precision, "yes" if compiled else "no", str(asvs), f"{rate:.0f}",
                              f"{share:.1%}", f"{memory:.1f}")  # fmt: skip
    return table


def _encode(encoder: Any, asvs: int, dtype: Any) -> tuple[float, float]:
    """Return sequences per second, forward and backward, and the peak memory in GiB."""
    import torch

    tokens_UL = torch.randint(1, 5, (asvs, 150), dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for k in range(8):
        if k == 3:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            vectors_UD, _ = encoder(tokens_UL, False)
        encoder.zero_grad()
        vectors_UD.float().square().mean().backward()
    torch.cuda.synchronize()
    rate = 5 * asvs / (time.perf_counter() - begin)
    return rate, torch.cuda.max_memory_allocated() / 2**30


if __name__ == "__main__":
    main()
