"""The scripts of `slurm/`, for people who prefer files: the same text that `submit` writes.

`python -m launcher.jobs.files slurm` writes them (`make slurm`); a test holds them against this.
Their jobs are those of the site `cosmos`; on another cluster options of sbatch replace what its
header says, and AAM_ENGINE and AAM_IMAGE what runs.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from aam import __version__
from launcher import config
from launcher.gpus import host_libraries
from launcher.jobs import decide
from launcher.jobs.job import Allocation, Job, Program
from launcher.jobs.script import array, part, sbatch_options, script
from launcher.jobs.site import Site
from launcher.jobs.wishes import Wishes

SITE = "cosmos"
SCRATCH = "/cosmos/vast/scratch/$USER"
IMAGE = f"{SCRATCH}/containers/rocm63.sif"
JOBS: dict[str, tuple[str, dict[str, str]]] = {
    "pretrain_single.sh": ("pretrain", {"--gpus": "1"}),
    "pretrain_node.sh": ("pretrain", {}),
    "pretrain_multi.sh": ("pretrain", {"--nodes": "4"}),
    "train.sh": ("train", {"--gpus": "1"}),
    "predict.sh": ("predict", {"--time": "1:00:00"}),
    "test_runner.sh": ("check", {"--time": "1:00:00"}),
}
"""File -> command of `aam` and options of `submit`."""


def files() -> dict[str, str]:
    """Return every script by its name."""
    site = config.site(SITE, {})
    made = {name: script(_job(name, site)) for name in JOBS}
    made["job_setup.sh"] = _alone(
        site,
        "job_setup.sh",
        "What a node looks like to a job: modules, interfaces, and the CPUs near each GPU.",
        ("say.sh", "job_setup.sh"),
        _SHOW,
    )
    made["stage_data.sh"] = _alone(
        site,
        "stage_data.sh",
        "Copies files to a folder of a node's own disk, each checked: FOLDER FILE...",
        ("say.sh", "stage_data.sh"),
        _STAGE,
    )
    made["sync_checkpoints.sh"] = _alone(
        site,
        "sync_checkpoints.sh",
        "Copies a run folder to another, every file whole at any moment: FROM TO.",
        ("say.sh", "sync_checkpoints.sh"),
        'here=$(mktemp -d) && sync_last "$1" "$2"\nstatus=$?\nrm -r -- "$here"\nexit $status\n',
    )
    made["cosmos_setup.sh"] = _alone(
        site,
        "cosmos_setup.sh",
        "Makes folders and links, checks modules, builds or pulls the image. On a login node.",
        ("say.sh", "job_setup.sh", "cosmos_setup.sh"),
        "setup\n",
    )
    return made


def _job(name: str, site: Site) -> Job:
    command, given = JOBS[name]
    what = decide.allocation(command, Wishes(given), site, "%x-%j.out")
    settings = config.site_settings(SITE, {})
    engine = settings["runtime"]
    flags = ("--distributed",) if what.nodes * what.ranks > 1 else ()
    runs = Program(
        command=command,
        options=None,
        flags=flags,
        engine=engine,
        fallback=IMAGE,
        vendor=site.text("vendor"),
        host_libraries=host_libraries(site.text("vendor"), bool(settings["host_rocm"])),
    )
    more = ("test_runner.sh",) if name == "test_runner.sh" else ()
    what = replace(what, name=name.removesuffix(".sh"))
    return Job(what, runs, decide.place(site), more)


def _alone(site: Site, name: str, about: str, parts: tuple[str, ...], last: str) -> str:
    """Return a script that is a part of a job alone."""
    where = decide.place(site)
    short = Allocation(name.removesuffix(".sh"), time="0:30:00", more=_more(site))
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in sbatch_options(short)), ""]
    lines += [f"# {about}", f"# Written by aam-launch {__version__}, a part of its job scripts."]
    lines += ["# shellcheck disable=SC2016,SC2034,SC2329", "set -uo pipefail", ""]
    lines += [': "${USER:=$(id -un)}" "${SLURM_JOB_ID:=$$}"']
    lines += [f'home_of_runs="{SCRATCH}"', f'image="${{AAM_IMAGE:-{IMAGE}}}"']
    lines += [f"engine=${{AAM_ENGINE:-{config.site_settings(SITE, {})['runtime']}}}"]
    lines += [f'local_disk="{where.local}"', f"stage_most_gb={where.stage_most_gb}"]
    lines += [f"sync_seconds={where.sync_seconds}", f"sync_patience={where.sync_patience}"]
    lines += [array("modules", where.modules), array("interfaces", where.interfaces), ""]
    return "\n".join([*lines, *(part(p) for p in parts), last.rstrip("\n")]) + "\n"


def _more(site: Site) -> tuple[str, ...]:
    return (f"--partition={site.text('partition')}",)


_STAGE = """mkdir -p -- "$1" && stage "$1" "$(sum_inputs "${@:2}")" "${@:2}" || exit
for ((number = 2; number <= $#; number++)); do
    # By their own names, too.
    if [ -e "$1/$((number - 1))" ]; then ln -sfn -- "$((number - 1))" "$1/${!number##*/}"; fi
done
"""

_SHOW = """load_modules
say "node $(hostname), $(nproc) CPUs, modules ${modules[*]}"
say "interfaces $(find_interfaces)"
choose_folder
free=$(df --output=avail -B1G -- "$(dirname -- "$here")" | tail -n1)
say "folder of a job '$here', $free GB free"
for gpu in 0 1 2 3 4 5 6 7 8 9 10 11; do
    near=$(cpus_near_gpu "$gpu")
    [ -z "$near" ] || say "GPU $gpu: CPUs $near"
done
check_image
say "image '$image'"
"""


def main() -> int:
    """Write the scripts into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name, text in files().items():
        aside = folder / f".{name}.{os.getpid()}"
        aside.write_text(text)
        aside.chmod(0o755)
        aside.replace(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
