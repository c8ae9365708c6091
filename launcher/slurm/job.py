"""Parts of a job script, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.slurm.site import Site


@dataclass(frozen=True)
class Allocation:
    """What a job requests of Slurm.

    Attributes:
        name: of the job.
        nodes: how many.
        ranks: processes on each node, one for a GPU.
        time: limit as "24:00:00"; empty: the partition's.
        log: file of the job's output, as sbatch's --output takes it.
        gpu_request: option that requests GPUs, ready to use, or "".
        whole_nodes: the nodes are for this job alone.
        more: further options of sbatch: partition, account, ...
        requeue: Slurm may start it again.
        tasks: number of tasks of an array; 0: no array.
    """

    name: str
    nodes: int = 1
    ranks: int = 1
    time: str = ""
    log: str = "%x-%j.out"
    gpu_request: str = ""
    whole_nodes: bool = False
    more: tuple[str, ...] = ()
    requeue: bool = False
    tasks: int = 0


@dataclass(frozen=True)
class Program:
    """What runs.

    Attributes:
        command: of `aam`.
        options: its options; None: the script takes them (a script of `slurm/`).
        sweep: options of each task of an array.
        shards: tasks of an array, each of which computes one shard of the samples; 0: none.
        flags: options that the stack requires.
        engine: name of the engine.
        container: options of the engine, from the same code as those of a direct launch.
        mounts: options that mount the paths of the command, likewise.
        image: the SIF; None: the variable AAM_IMAGE, or `fallback`.
        image_state: size and modification time of the SIF when it was checked, "BYTES-SECONDS";
            "" where the script names no SIF of its own.
        fallback: image of a script of `slurm/`; may hold variables of the job.
        python: interpreter that starts `aam.node`.
        variables: NAME=VALUE to set, literally.
        passed: patterns of names of variables that enter the image.
        required: files that have to be there before a container can start.
        reservation: file of the output that the submission made, which a node must see; "" in a
            script that `submit` does not queue.
        shared: folders to mount where a node has them.
        vendor: whose GPUs the ranks use, or "".
        record: the plan, for run.json; "" for none.
        use_record: as `Plan.use_record`.
    """

    command: str
    options: tuple[str, ...] | None
    sweep: tuple[tuple[str, ...], ...] = ()
    shards: int = 0
    flags: tuple[str, ...] = ()
    engine: str = ""
    container: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    image: str | None = None
    image_state: str = ""
    fallback: str = ""
    python: str = "python"
    variables: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    reservation: str = ""
    shared: tuple[str, ...] = ()
    vendor: str = ""
    record: str = ""
    use_record: str | None = None


@dataclass(frozen=True)
class Job:
    """A whole job; it saves a checkpoint `warn_seconds` before its limit (0: it does not)."""

    allocation: Allocation
    program: Program
    site: Site
    warn_seconds: int = 0
