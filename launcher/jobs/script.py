"""The job script as a text: what Slurm is asked for, what runs, and the shell that does it. Pure.

The shell of `parts/` is the same in every script; what differs stands at its top. The scripts of
`slurm/` are made here too, so the test of one is a test of the other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from aam import __version__
from launcher.engines.sif import contained as contained_by
from launcher.gpus import VENDORS, visible_devices_variables
from launcher.jobs.job import Allocation, Job, Program
from launcher.plan.environment import NEVER, PASSED
from launcher.plan.request import options_of

PARTS = Path(__file__).with_name("parts")
NAMES = (
    "say.sh",
    "job_setup.sh",
    "program.sh",
    "stage_data.sh",
    "sync_checkpoints.sh",
    "run_job.sh",
)
OWN = ("AAM_ROLE", "AAM_SUMS", "AAM_SYS", "AAM_ENGINE", "AAM_IMAGE")
"""Variables of the script itself."""
PLAIN = re.compile(r"[A-Za-z0-9_./${}-]*\Z")
"""What a text may hold whose variables the job fills in."""


def script(job: Job) -> str:
    """Return the script of a job."""
    record = ["# --- the plan, for run.json", "", f"record={shlex.quote(job.program.record)}", ""]
    parts = [*_header(job), *_facts(job), *(part(name) for name in (*NAMES, *job.more)), *record]
    return "\n".join([*parts, 'main "$@"']) + "\n"


def part(name: str) -> str:
    """Return one file of the shell that every script holds."""
    return (PARTS / name).read_text()


def resumable(command: str) -> bool:
    """Tell whether a command can go on from a checkpoint."""
    return "--resume-from" in options_of(command)


def _header(job: Job) -> list[str]:
    what = job.allocation
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in sbatch_options(what)), ""]
    ranks = (
        f"{what.nodes} node{'s' * (what.nodes > 1)}, {what.ranks} rank{'s' * (what.ranks > 1)} each"
    )
    lines.append(f"# aam {job.program.command}: {ranks}, {job.place.title}.")
    if job.program.options is None:
        lines += [
            f"# Submit it with the options of `aam {job.program.command}`:",
            f"#     sbatch THIS_FILE {' '.join(_example(job.program.command))}",
            "# Options of sbatch before the file's name replace those above.",
        ]
    lines.append(
        f"# Written by aam-launch {__version__}; it needs the image and Slurm, nothing else."
    )
    # What people wrote stands in single quotes, whatever it holds.
    quiet = "SC2016,SC2329" if job.more else "SC2016"
    return [*lines, f"# shellcheck disable={quiet}", "set -uo pipefail", ""]


def sbatch_options(what: Allocation) -> list[str]:
    """Return what Slurm is asked for, each word as a line of #SBATCH takes it."""
    options = [f"--job-name={what.name}", *what.more]
    options += [f"--nodes={what.nodes}", f"--ntasks-per-node={what.ranks}"]
    options += [what.gpu_request] if what.gpu_request else []
    options += ["--exclusive", "--mem=0"] if what.whole_nodes else []
    options += [f"--time={what.time}"] if what.time else []
    options += [f"--array=0-{what.tasks - 1}"] if what.tasks else []
    options += [f"--signal=B:USR1@{what.warn_seconds}"] if what.warn_seconds else []
    options += ["--requeue" if what.requeue else "--no-requeue", "--open-mode=append"]
    options += [f"--output={what.log}"]
    return [_directive(option) for option in options]


def _facts(job: Job) -> list[str]:
    program, place, what = job.program, job.place, job.allocation
    known = options_of(program.command).values()
    roles = {role: [s.flag for s in known if s.role == role] for role in ("input", "output")}
    run = resumable(program.command)
    contained = program.engine != "native"
    vendor = VENDORS.get(program.vendor)
    engine_flags = contained_by(program.host_libraries)
    return [
        "# --- what runs",
        "",
        *_arguments(program),
        f"command={program.command}",
        array("flags", program.flags),
        f"input_flags='{' '.join(roles['input'])}'",
        f"output_flags='{' '.join(roles['output'])}'",
        f"writes_folder={_yes('--output-dir' in roles['output'])}",
        f"resumable={_yes(run)}",
        f"requeue={_yes(what.requeue and bool(what.warn_seconds))}",
        "",
        "# --- with what",
        "",
        *_image(program),
        array("native", program.native),
        array("engine_flags", engine_flags),
        array("devices", (*vendor.shared_nodes, "/dev/dri")
              if vendor and not vendor.host_libraries else ()),
        f"mask={vendor.visible_devices if vendor else ''}",
        array("variables", program.variables),
        array("binds", program.binds),
        f"carried_patterns={_one_of((*PASSED, *program.passed))}",
        f"never_carried={_one_of((*NEVER, *visible_devices_variables(), *OWN))}",
        "",
        f"# --- where: {place.title}",
        "",
        f"ranks_per_node={what.ranks}",
        f"whole_nodes={_yes(what.whole_nodes)}",
        array("modules", place.modules),
        f'local_disk="{_plain(place.local)}"',
        f"stage_most_gb={place.stage_most_gb if contained else 0}",
        f"local_run={_yes(run and contained and place.stage_most_gb > 0)}",
        f"sync_seconds={place.sync_seconds}",
        f"sync_patience={place.sync_patience}",
        array("interfaces", place.interfaces),
        array("plugin", place.plugin),
        array("network", place.network),
        "",
    ]  # fmt: skip


def _arguments(program: Program) -> list[str]:
    """Return what gives the script its words; ranks are given them by the job."""
    if program.options is None:
        return []
    lines = ["if [ $# -eq 0 ]; then", *_set(program.options, "    ")]
    if program.sweep:
        lines.append("    case $SLURM_ARRAY_TASK_ID in")
        for number, words in enumerate(program.sweep):
            lines.append(f'        {number}) set -- "$@" {shlex.join(words)} ;;')
        lines.append("    esac")
    return [*lines, "fi"]


def _set(words: Sequence[str], indent: str) -> list[str]:
    """Return `set --` with an option and its values on each line."""
    rows: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not rows:
            rows.append([])
        rows[-1].append(shlex.quote(word))
    lines = [f"{indent}set --", *(f"{indent}    {' '.join(row)}" for row in rows)]
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _image(program: Program) -> list[str]:
    if program.image is not None:
        return [f"engine={program.engine}", f"image={shlex.quote(program.image)}"]
    return [
        f"engine=${{AAM_ENGINE:-{program.engine}}} # or native: aam as the nodes have it",
        f'image="${{AAM_IMAGE:-{_plain(program.fallback)}}}"',
    ]


def _example(command: str) -> list[str]:
    required = [spec for spec in options_of(command).values() if spec.required]
    return [word for spec in required for word in (spec.flag, spec.field.upper())]


def array(name: str, words: Iterable[str]) -> str:
    """Return an array of the shell's."""
    return f"{name}=({' '.join(map(_quoted, words))})"


def _quoted(word: str) -> str:
    """Quote a word of an array; a comma is quoted too, or it looks like a mistake."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted == word and "," in word else quoted


def _one_of(patterns: Iterable[str]) -> str:
    """Return a pattern of the shell's that matches any of `patterns`."""
    return shlex.quote(f"@({'|'.join(patterns)})")


def _yes(on: bool) -> str:
    return "yes" if on else "no"


def _plain(text: str) -> str:
    """Return a text whose variables the job fills in; `check_place` has refused others."""
    assert PLAIN.match(text), text
    return text


def _directive(word: str) -> str:
    """Return an option as a line of #SBATCH takes it: in double quotes where it has to be."""
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
