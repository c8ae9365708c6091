"""Job script: the #SBATCH lines, the modules, the image, and three steps of `aam.node`. Pure.

What the steps do is Python, inside the image (`aam.node`). The shell keeps what only the host can
do: Slurm's programs, the signals of the batch job, and the start of the engine with its mounts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aam import __version__
from aam.contract.options import options_of
from launcher.slurm.site import Site

NODE_FOLDER = "/mnt/node"
"""Where a container sees the job's folder on the node's own disk."""

TRIALS = "--trials-only"
"""Option of a process that takes part in a search and leaves the evaluation to another one."""

PLAIN = re.compile(r"([A-Za-z0-9_./-]|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*\})*\Z")
"""What a text may hold whose variables the job fills in."""

BIND = '--mount "type=bind,source=$path,destination=$path"'
"""Mounts what the loop variable of a script names."""

MAIN = Path(__file__).with_name("job.sh")
"""The part of a script that is the same in every job."""


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


def script(job: Job) -> str:
    """Return the script of a job."""
    program = job.program
    parts = [*_header(job), *_environment(job), *_facts(job), *_native_fallback(program),
             *_command(program)]  # fmt: skip
    return "\n".join(parts) + "\n" + MAIN.read_text()


def resumable(command: str) -> bool:
    """Return whether a command can go on from a checkpoint, or with the trials that are left."""
    return any(spec.flag == "--resume-from" for spec in options_of(command))


def shares_trials(command: str) -> bool:
    """Return whether several jobs can work on one run folder, each in one process."""
    return any(spec.flag == TRIALS for spec in options_of(command))


def _header(job: Job) -> list[str]:
    what, command = job.allocation, job.program.command
    ranks = f"{what.nodes} node{'s' * (what.nodes > 1)}, {what.ranks} rank"
    ranks += f"{'s' * (what.ranks > 1)} each"
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in sbatch_options(what))]
    lines.append(f"# aam {command}: {ranks}, {job.site.title}. From aam-launch {__version__}.")
    if job.program.options is None:
        lines.append(f"#     sbatch [OPTIONS] THIS_FILE {' '.join(_example(command))}")
    # SC2016: arguments that a user wrote stand in single quotes, whatever they hold.
    return [*lines, "# shellcheck disable=SC1091,SC2015,SC2016"]


def sbatch_options(what: Allocation) -> list[str]:
    """Return the options of sbatch, each as a line of #SBATCH takes it."""
    options = [f"--job-name={what.name}", *what.more]
    options += [f"--nodes={what.nodes}", f"--ntasks-per-node={what.ranks}"]
    options += [what.gpu_request] if what.gpu_request else []
    options += ["--exclusive", "--mem=0"] if what.whole_nodes else []
    options += [f"--time={what.time}"] if what.time else []
    options += [f"--array=0-{what.tasks - 1}"] if what.tasks else []
    options += ["--requeue" if what.requeue else "--no-requeue", "--open-mode=append"]
    options += [f"--output={what.log}"]
    return [_directive(option) for option in options]


def _environment(job: Job) -> list[str]:
    """Return the lines about the host: modules, folder on the node, time limit, image."""
    program, site = job.program, job.site
    lines, local = [], plain(site.text("local"))
    if modules := site.strings("modules"):
        lines.append("command -v module >/dev/null || . /etc/profile")
        lines.append(f"module load {shlex.join(modules)} || exit 69")
    lines.append("set -uo pipefail")
    lines.append('export SLURM_EXPORT_ENV=ALL USER="${USER:-$(id -un)}" '
                 f"ranks=${{SLURM_NTASKS_PER_NODE:-{job.allocation.ranks}}}")  # fmt: skip
    lines.append(f'disk="{local}"; [ -w "$disk" ] || disk=${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}')
    lines.append("export node=$disk/aam-$SLURM_JOB_ID")
    # `date` takes an empty text, which Slurm prints where it states no end, for today's midnight.
    lines.append('end=${SLURM_JOB_END_TIME:-$(t=$(SLURM_TIME_FORMAT=standard squeue -h -j '
                 '"$SLURM_JOB_ID" -o %e); [ -z "$t" ] || '
                 'date -d "$t" +%s 2>/dev/null)}')  # fmt: skip
    return lines + _image(program)


def _image(program: Program) -> list[str]:
    """Return the lines about the engine, the image and the interpreter in it."""
    if program.engine == "native":
        return ["image='' container=()", f"python={shlex.quote(program.python)}"]
    private = (f"type=bind,source=$node,destination={NODE_FOLDER}",
              "type=bind,source=$node/tmp,destination=/tmp")  # fmt: skip
    arguments = [*map(quoted, program.container), *(f'--mount "{mount}"' for mount in private)]
    if program.image is not None:
        return [f"image={shlex.quote(program.image)} python=python",
                f"container=({program.engine} {' '.join(arguments)})"]  # fmt: skip
    return [
        f'image="${{AAM_IMAGE:-{plain(program.fallback)}}}" python=python',
        f'container=("${{AAM_ENGINE:-{program.engine}}}" {" ".join(arguments)})',
    ]


def _facts(job: Job) -> list[str]:
    """Return the arrays that the rest of the script reads."""
    program, site = job.program, job.site
    contained = program.engine != "native"
    folder = NODE_FOLDER if contained else '"$node"'
    settings = [f"--node-folder {folder}", '--host-folder "$node"', '--directory "$PWD"']
    settings += ['--ranks "$ranks"', '--end "$end"']
    settings += [] if contained else ["--native"]
    settings += [f"--vendor {program.vendor}"] if program.vendor else []
    settings += ["--whole-nodes"] if job.allocation.whole_nodes else []
    settings += [f"--stage-gb {site.number('stage_most_gb')}"] if contained else []
    settings += [f"--sync-seconds {max(1, site.number('sync_seconds'))}"]
    settings += [f"--sync-patience {site.number('sync_patience')}"]
    settings += [f"--warn-seconds {job.warn_seconds}"] if job.warn_seconds else []
    settings += ["--requeue"] if job.allocation.requeue else []
    network = [f"{name}={value}" for name, value in site.network.items()]
    repeated = (("interface", site.strings("interfaces")), ("plugin", site.strings("plugin")),
                ("variable", network))  # fmt: skip
    settings += [f"--{name} {quoted(value)}" for name, values in repeated for value in values]
    lines = [f"settings=({' '.join(settings)})"]
    lines.append(array("variables", program.variables))
    required = " ".join([*(['"$image"'] if contained else []), *map(quoted, program.required)])
    lines.append(f"{array('mounts', program.mounts)} required=({required})")
    if program.image_state:
        changed = "aam-job: '$image' has changed since the job was submitted; submit it again"
        lines.append(f'[ "$(stat -Lc %s-%Y -- "$image")" = {program.image_state} ] || '
                     f'{{ echo "{changed}" >&2; exit 65; }}')  # fmt: skip
    if program.reservation:
        hidden = (
            "aam-job: $(hostname) does not see the output folder: '$file', which the submission "
            "made, does not exist there; choose a folder that all nodes see"
        )
        lines.append(f'file={shlex.quote(program.reservation)}; [ -e "$file" ] || '
                     f'{{ echo "{hidden}" >&2; exit 73; }}')  # fmt: skip
    lines.append(f"passed={shlex.quote('@(' + '|'.join(program.passed) + ')')}")
    folders = [*map(quoted, program.shared), *map(quoted, site.strings("plugin"))]
    folders += ["${AAM_BIND-}"] if program.image is None else []
    if folders and contained:
        test = f'[ ! -e "$path" ] || mounts+=({BIND})'
        lines.append(f"for path in {' '.join(folders)}; do {test}; done")
    return [*lines, *([f"export AAM_PLAN={shlex.quote(program.record)}"] if program.record else [])]


def _native_fallback(program: Program) -> list[str]:
    """Return the line that lets a script of `slurm/` run without an image."""
    if program.image is not None or program.engine == "native":
        return []
    return [
        "[ \"${AAM_ENGINE-}\" != native ] || { image='' container=() required=() "
        'variables=(PYTHONSAFEPATH=1); settings+=(--native --node-folder "$node"); }'
    ]


def _command(program: Program) -> list[str]:
    """Return the lines that set the command line of `aam`."""
    head = [*program.command.split(), *program.flags]
    if program.options is None:
        return [f'set -- {shlex.join(head)} "$@"']
    lines = [f"set -- {' '.join(map(quoted, (*head, *program.options)))}"]
    if program.shards:
        lines.append(f'set -- "$@" --shard "$((SLURM_ARRAY_TASK_ID + 1))/{program.shards}"')
    if program.sweep:
        lines.append("case $SLURM_ARRAY_TASK_ID in")
        for number, arguments in enumerate(program.sweep):
            lines.append(f'    {number}) set -- "$@" {shlex.join(arguments)} ;;')
        lines.append("esac")
    return lines


def _example(command: str) -> list[str]:
    required = [spec for spec in options_of(command) if spec.required]
    return [argument for spec in required for argument in (spec.flag, spec.field.upper())]


def array(name: str, arguments: Iterable[str]) -> str:
    """Return an array of the shell's."""
    return f"{name}=({' '.join(map(quoted, arguments))})"


def quoted(argument: str) -> str:
    """Quote an argument of an array; a comma is quoted too, or it looks like a mistake."""
    text = shlex.quote(argument)
    return f"'{argument}'" if text == argument and "," in argument else text


def plain(text: str) -> str:
    """Return a text whose variables the job fills in; `decide` has refused others."""
    assert PLAIN.match(text), text
    return text


def _directive(argument: str) -> str:
    """Return an option as a line of #SBATCH takes it: in double quotes where it has to be."""
    assert argument.isprintable(), argument  # `decide` has refused others
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", argument):
        return argument
    return '"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"'
