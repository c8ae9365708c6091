"""What a job script is made of; everything was decided before."""

from __future__ import annotations

from dataclasses import field

from aam.options.frozen import dataclass


@dataclass(frozen=True)
class Allocation:
    """What Slurm is asked for.

    Attributes:
        name: of the job.
        nodes: how many.
        ranks: processes on each node, one for a GPU.
        time: limit as "24:00:00"; empty: the partition's.
        log: file of the job's output, as sbatch's --output takes it.
        gpu_request: option that asks for GPUs, ready to use, or "".
        whole_nodes: the nodes are for this job alone.
        more: further options of sbatch: partition, account, ...
        warn_seconds: how long before its limit the job is told to stop; 0: never.
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
    warn_seconds: int = 0
    requeue: bool = False
    tasks: int = 0


@dataclass(frozen=True)
class Program:
    """What runs.

    Attributes:
        command: of `aam`.
        options: its words; None: those that the script is given (a script of `slurm/`).
        sweep: words of each task of an array.
        flags: words that the stack or the number of ranks requires.
        engine: "apptainer", "singularity" or "native".
        image: the SIF; None: the variable AAM_IMAGE, or `fallback`.
        fallback: where the image is looked for if nobody says; may hold variables of the job.
        native: words that start `aam` without an image.
        vendor: whose GPUs: a name of `launcher.gpus.VENDORS`, or "".
        host_libraries: the vendor whose libraries of the host the engine binds; "" for none.
        variables: NAME=VALUE to set, literally.
        passed: names of more variables to let in; a final * matches any ending.
        binds: further mounts, as the engine's --mount takes them.
        record: the plan, for run.json; "" for none.
    """

    command: str
    options: tuple[str, ...] | None
    sweep: tuple[tuple[str, ...], ...] = ()
    flags: tuple[str, ...] = ()
    engine: str = ""
    image: str | None = None
    fallback: str = ""
    native: tuple[str, ...] = ("aam",)
    vendor: str = ""
    host_libraries: str = ""
    variables: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    record: str = ""


@dataclass(frozen=True)
class Place:
    """What the nodes are like.

    Attributes:
        title: of the site.
        modules: to load.
        local: folder on the node's own disk; may hold variables of the job.
        stage_most_gb: most that is copied there.
        interfaces: patterns of fast network interfaces.
        plugin: folders of RCCL's or NCCL's network plugin.
        network: NAME=VALUE for jobs of several nodes.
        sync_seconds: how often a run is looked at for something new to copy.
        sync_patience: how long a full disk is given at the end.
    """

    title: str = "a Slurm cluster"
    modules: tuple[str, ...] = ()
    local: str = ""
    stage_most_gb: int = 0
    interfaces: tuple[str, ...] = ()
    plugin: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    sync_seconds: int = 10
    sync_patience: int = 300


@dataclass(frozen=True)
class Job:
    """A whole job; `more` names files of the shell that change what it does."""

    allocation: Allocation
    program: Program
    place: Place = field(default_factory=Place)
    more: tuple[str, ...] = ()
