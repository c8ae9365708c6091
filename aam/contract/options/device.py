"""Options about the computation: device, attention backend, precision and processes."""

from dataclasses import dataclass
from typing import Literal

from aam.contract.options import ONE_OR_MORE, PROCESSES, SECONDS, ZERO_OR_MORE, resumable_option

MixedPrecision = Literal["none", "bf16", "fp16", "auto"]

CompileModel = Literal["off", "auto", "force"]

AttnImplementation = Literal["auto", "sdpa", "math", "mem_efficient", "flash"]

Device = Literal["auto", "cpu", "cuda"]

DEVICE_HELP = (
    "Where to compute. 'gpu' or 'cuda': a GPU of any vendor; 'auto': a GPU if there is one, else "
    "the CPU."
)


def uses_network(options: object) -> bool:
    """Return whether a command computes with the network: on a GPU, or in several processes.

    A command that does so for some values of its options alone declares a property of this name.
    """
    return bool(getattr(options, "uses_network", True))


@dataclass(frozen=True)
class DeviceOptions:
    """Device, data loading and attention backend."""

    device: Device = resumable_option(DEVICE_HELP, default="auto", basic=True)
    num_workers: int | Literal["auto"] = resumable_option(
        "Data loader processes; 'auto': none on a CPU, up to 4 for a GPU.",
        default="auto",
        takes=PROCESSES,
    )
    cpu_threads: int | Literal["auto"] = resumable_option(
        "Threads of the CPU that compute; 'auto': OMP_NUM_THREADS, else one for each core.",
        default="auto",
        takes=ONE_OR_MORE,
    )
    attn_implementation: AttnImplementation = resumable_option(
        "Attention kernel of PyTorch ('sdpa' is the same as auto).", default="auto"
    )
    check: bool = resumable_option(
        "Before the run, measure whether this GPU computes attention correctly; a backend that "
        "does not is not used.",
        default=True,
    )


@dataclass(frozen=True)
class SpeedOptions:
    """Precision, compilation and memory of the training."""

    mixed_precision: MixedPrecision = resumable_option(
        "Precision of the matrix products; fp16 with loss scaling. 'auto': bf16 on a GPU that "
        "supports it, else none.",
        default="none",
    )
    report_fp32_fallbacks: bool = resumable_option(
        "List the modules that run in fp32 under mixed precision.", default=False
    )
    compile_model: CompileModel = resumable_option(
        "Compile the nucleotide encoder with torch.compile. 'auto' (also the flag without a "
        "value): except with ROCm, whose Triton has a fault; 'force': also with ROCm.",
        default="off",
        alone="auto",
    )
    gradient_checkpointing: bool = resumable_option(
        "Recompute activations in the backward pass: less memory, a third more time.", default=False
    )
    asv_chunk: int | Literal["auto"] = resumable_option(
        "Encode the distinct ASVs of a batch in chunks of at most this many, each recomputed in "
        "the backward pass: memory does not grow with the number of ASVs. 0: all at once; 'auto': "
        "the largest chunks that fit into memory, 0 if all do.",
        default=0,
        takes=ZERO_OR_MORE,
    )
    prefetch_factor: int = resumable_option(
        "Batches that each data loader process prepares ahead.", default=2, takes=ONE_OR_MORE
    )
    tuned_for: str | None = resumable_option(
        "Study, device and versions that settings of `aam tune` were measured with; a run with "
        "others is refused."
    )

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass recomputes attention; `auto` may."""
        return self.gradient_checkpointing or self.asv_chunk != 0

    @property
    def chunk_size(self) -> int:
        """Most ASVs of a chunk; 0, all at once, while `auto` is not replaced."""
        return 0 if self.asv_chunk == "auto" else self.asv_chunk


@dataclass(frozen=True)
class RankOptions:
    """Several processes, started by --processes, `aam-launch --gpus`, torchrun or srun."""

    processes: int = resumable_option(
        "Processes to start on this machine, one for each GPU or each group of CPU cores; 0: start "
        "none (one process, or processes of torchrun or srun).",
        default=0,
        takes=PROCESSES,
    )
    rank_timeout: float = resumable_option(
        "Seconds without a heartbeat of a process after which it counts as failed and the others "
        "stop.",
        default=60.0,
        takes=SECONDS,
    )


@dataclass(frozen=True)
class ScaleOptions(RankOptions):
    """Training by several processes."""

    distributed: bool = resumable_option(
        "Split every batch among the processes; each holds the whole network (DDP).", default=False
    )
    fsdp: bool = resumable_option(
        "Split every batch among the processes; each holds a shard of the network (FSDP).",
        default=False,
        excludes=("--distributed",),
    )
    fsdp_sharded_checkpoint: bool = resumable_option(
        "No longer needed: a checkpoint is one file for any number of processes.", default=False
    )
    data_parallel: bool = resumable_option(
        "Split every batch among all GPUs of this machine; starts one process for each.",
        default=False,
        excludes=("--distributed", "--fsdp"),
    )
