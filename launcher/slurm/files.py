"""The scripts of `slurm/`, for users who prefer files: the same text that `submit` writes.

`python -m launcher.slurm.files slurm` writes them (`make slurm`); a test compares them with this.
Their jobs are those of the site `cosmos`; on another cluster options of sbatch replace its
header, AAM_ENGINE and AAM_IMAGE its engine and image, and AAM_BIND names folders that jobs see.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from aam import __version__
from aam.contract.files import atomic_write
from aam.contract.options import ParsedCommand
from launcher import config
from launcher.engines import ENGINES
from launcher.engines.base import assignments
from launcher.gpus import VENDORS, host_libraries
from launcher.options.submit import SubmitOptions
from launcher.plan import environment
from launcher.plan.plan import Plan
from launcher.slurm import decide
from launcher.slurm.script import BIND, NODE_FOLDER, Job, Program, plain, quoted, script
from launcher.slurm.site import Site

SITE = "cosmos"
SCRATCH = "/cosmos/vast/scratch/$USER"
IMAGE = f"{SCRATCH}/containers/rocm63.sif"
JOBS: dict[str, tuple[str, SubmitOptions]] = {
    "pretrain_single.sh": ("pretrain", SubmitOptions(gpus=1)),
    "pretrain_node.sh": ("pretrain", SubmitOptions()),
    "pretrain_multi.sh": ("pretrain", SubmitOptions(nodes=4)),
    "train.sh": ("train", SubmitOptions(gpus=1)),
    "predict.sh": ("predict", SubmitOptions(time="1:00:00")),
    "test_runner.sh": ("check", SubmitOptions(time="1:00:00")),
}
"""File -> command of `aam` and options of `submit`."""

TESTS = ('settings+=(--checkout "${AAM_CHECKOUT:-$PWD}" --pytest '
         '"${AAM_PYTEST:-$(dirname "$image")/pytest}")')  # fmt: skip

ALONE = {
    "job_setup.sh": (
        "What a job finds on a node: GPUs and the CPUs near each, interfaces, disk.",
        'show --folder "$disk" --interfaces {interfaces}',
    ),
    "stage_data.sh": (
        "Copies files to a folder of the node's own disk, each verified: FOLDER FILE...",
        'stage --most-gb {stage} "$@"',
    ),
    "sync_checkpoints.sh": (
        "Copies a run folder to another, every file complete at any moment: FROM TO.",
        'sync --patience {patience} "$@"',
    ),
}
"""File -> what it does, and its call of `aam.node`."""


def files() -> dict[str, str]:
    """Return every script by its name."""
    site = config.site(SITE)
    decide.require_scriptable(site)
    jobs = {name: _job_script(name, site) for name in JOBS}
    alone = {name: _alone(name, site) for name in ALONE}
    return {**jobs, **alone, "cosmos_setup.sh": _setup(site)}


def _job_script(name: str, site: Site) -> str:
    text = script(_job(name, site))
    if JOBS[name][0] == "check":
        text = text.replace("\nset -- ", f"\n{TESTS}\nset -- ")
        text = text.replace('step run "$ranks"', "step tests 1")
    return text


def _job(name: str, site: Site) -> Job:
    command, requested = JOBS[name]
    what = decide.allocation(ParsedCommand(command), requested, site, "%x-%j.out")
    runs = Program(
        command=command,
        options=None,
        engine=site.text("runtime"),
        container=ENGINES[site.text("runtime")].run_flags(_plan(site)),
        fallback=IMAGE,
        variables=assignments(_plan(site)),
        passed=decide.passed(site),
        shared=site.strings("shared"),
        vendor=site.text("vendor"),
    )
    what = replace(what, name=name.removesuffix(".sh"))
    warn = decide.warn_seconds(command, requested, site)
    return Job(what, runs, site, warn)


def _plan(site: Site) -> Plan:
    """Return the plan of a job whose paths are not known yet."""
    variables, _ = environment.container_variables({}, (), {}, NODE_FOLDER)
    vendor = VENDORS.get(site.text("vendor"))
    requested = bool(vendor and site.setting(vendor.libraries_setting))
    return Plan(
        engine=site.text("runtime"),
        program=site.text("runtime"),
        argv=(),
        variables=tuple(variables.items()),
        host_libraries=host_libraries(site.text("vendor"), requested),
        host_devices=True,
        workdir=f"{NODE_FOLDER}/home",
    )


def _alone(name: str, site: Site) -> str:
    """Return a script that calls one part of `aam.node`, on a login node or with sbatch."""
    about, call = ALONE[name]
    call = call.format(
        interfaces=" ".join(map(quoted, site.strings("interfaces"))),
        stage=site.number("stage_most_gb"),
        patience=site.number("sync_patience"),
    )
    plan = replace(_plan(site), workdir="/", variables=())
    local = plain(site.text("local"))
    folders = " ".join(map(quoted, site.strings("shared")))
    arguments = " ".join(map(quoted, ENGINES[site.text("runtime")].run_flags(plan)))
    lines = [
        *_head(site, name, about),
        f'disk="{local}" && [ -w "$disk" ] || disk=${{TMPDIR:-/tmp}}',
        f'container=("$engine" {arguments})',
        f'for path in "$disk" {folders} ${{AAM_BIND-}}; do [ ! -e "$path" ] || '
        f"container+=({BIND}); done",
        'container+=("$image" python -m aam.node)',
        '[ "$engine" != native ] || container=(env PYTHONSAFEPATH=1 python -m aam.node)',
        f'exec "${{container[@]}}" {call}',
    ]
    return "\n".join(lines) + "\n"


def _setup(site: Site) -> str:
    about = "Make folders and links, build the image: [OPTIONS of images build]. On a login node."
    lines = [*_head(site, "cosmos_setup.sh", about), f'home_of_runs="{SCRATCH}"']
    return "\n".join(lines) + "\n" + Path(__file__).with_name("cosmos_setup.sh").read_text()


def _head(site: Site, name: str, about: str) -> list[str]:
    options = (name.removesuffix(".sh"), site.text("partition"), "0:30:00", "%x-%j.out")
    names = ("job-name", "partition", "time", "output")
    return [
        "#!/bin/bash",
        *(f"#SBATCH --{key}={value}" for key, value in zip(names, options, strict=True)),
        f"# {about} From aam-launch {__version__}.",
        "# shellcheck disable=SC1091",
        'export USER="${USER:-$(id -un)}" SLURM_JOB_ID="${SLURM_JOB_ID:-$$}"',
        f'engine=${{AAM_ENGINE:-{site.text("runtime")}}} image="${{AAM_IMAGE:-{IMAGE}}}"',
        'if [ "$engine" != native ]; then',
        "    command -v module >/dev/null || . /etc/profile",
        f"    module load {shlex.join(site.strings('modules'))} || exit 69",
        "fi",
        "set -uo pipefail",
    ]


def main() -> int:
    """Write the scripts into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name, text in files().items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text)
            temporary.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
