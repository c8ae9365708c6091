"""Planning of a launch: gather facts, settings and files, then decide and assemble."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aam.contract.errors import MissingInput
from launcher import check_reports, config, input_files
from launcher.detect import detect, with_versions
from launcher.engines import ENGINES, native
from launcher.engines.sif import SIF, sif_id
from launcher.host.facts import Host
from launcher.images import inventory
from launcher.plan.decision import Candidate, decide
from launcher.plan.inputs import LaunchContext, LaunchInputs
from launcher.plan.mounts import Mount, parse_bind
from launcher.plan.plan import Plan, assemble_plan
from launcher.plan.request import Request
from launcher.plan.settings import LaunchSettings
from launcher.plan.visible_devices import visible_devices_variables


def gather(
    request: Request,
    host_root: Path = Path("/"),
    settings: LaunchSettings | None = None,
    mounts: Sequence[Mount] = (),
    shares_memory: bool = False,
    usual_site: str = "",
) -> LaunchInputs:
    """Return everything that a launch of `request` on the host below `host_root` is decided from.

    Args:
        request: the command and its options.
        host_root: "/", or a capture, for which every image of the catalog counts as built.
        settings, mounts, shares_memory: see `plan_launch`.
        usual_site: see `config.read`.
    """
    folder = os.getcwd()
    settings = settings or config.read(request.launcher_options, os.environ, usual_site)
    catalog = config.catalog(settings)
    host = detect(host_root)
    # --env of a variable that selects GPUs is a selection as that of a shell.
    masks = {name: given.value for name, given in settings.env.items()
             if name in visible_devices_variables() and given.value is not None}  # fmt: skip
    if masks:
        host = replace(host, environment={**host.environment, **masks})
        own = {name: entry for name, entry in settings.env.items() if name not in masks}
        settings = replace(settings, env=own)
    look = input_files.path_facts if host.live else input_files.lexical_path_facts
    if host.live:
        built = inventory.built(settings, catalog)
        catalog = inventory.measured(catalog, built, settings.runtime.value)
    else:
        built = inventory.assumed(settings, catalog)
    binds = request.launcher_options.get("--bind", ())
    user = host.user.uid if host.user else 0
    job = host.slurm.job if host.slurm else None
    context = LaunchContext(
        folder=folder,
        private=config.private_folder(settings, user, host.name, job),
        home=os.path.expanduser("~"),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        requested_mounts=(*requested_mounts(settings, host.live, binds), *mounts),
        reports=str(check_reports.folder(os.environ)),
        shares_memory=shares_memory,
    )
    return LaunchInputs(
        request, host, catalog, settings, built, native.detect_stack(), context,
        look(request, folder),
    )  # fmt: skip


def plan_launch(
    request: Request,
    host_root: Path = Path("/"),
    starting: bool = False,
    settings: LaunchSettings | None = None,
    mounts: Sequence[Mount] = (),
    shares_memory: bool = False,
) -> tuple[Host, Plan]:
    """Decide how to run `request` on the host below `host_root`.

    Args:
        request: the command and its options.
        host_root: "/", or a capture.
        starting: the plan will run, and its record holds the version of the engine; an engine whose
            version is not cached is started for it, which takes too long for `explain`.
        settings: those of a job, decided when it was submitted; by default those of this process.
        mounts: further mounts, such as copies of inputs on the disk of a node.
        shares_memory: other ranks on this node exchange data with this one through /dev/shm.
    """
    started = time.time() if starting else None
    inputs = gather(request, host_root, settings, mounts, shares_memory)
    inputs = replace(inputs, context=replace(inputs.context, started=started))
    host, choice = inputs.host, decide(inputs)
    if host.live:
        host = with_versions(host, (choice.engine,) if starting else ())
        inputs = replace(inputs, host=host)
        _check(choice)
        input_files.require_outputs(inputs.paths)
    plan = assemble_plan(inputs, choice)
    if host.live and plan.folders:
        place = input_files.nearest_folder(plan.folders[0])
        input_files.require_space(
            place, "No room for caches and temporary files", "give another --scratch"
        )
    return host, plan


def _check(choice: Candidate) -> None:
    built = choice.built
    if built is not None and ENGINES[choice.engine].traits.image_format == SIF:
        if sif_id(built.place) is None:
            raise MissingInput("Not a complete SIF", f"'{built.place}'", "build or copy it again")
        if built.mismatch:
            evidence, remedy = built.mismatch
            cause = "The image is not the recorded one"
            raise MissingInput(cause, f"'{built.place}', {evidence}", remedy)


def requested_mounts(
    settings: LaunchSettings, live: bool, given: Sequence[str] = ()
) -> tuple[Mount, ...]:
    """Return the mounts of --bind and of configurations."""
    found = []
    for bind in settings.bind:
        mount = parse_bind(bind.value, os.path.exists(bind.value), bind.source)
        if live and bind.value in given and not os.path.exists(mount.source):
            evidence = f"'{mount.source}' does not exist ({mount.origin})"
            raise MissingInput("A folder to mount is missing", evidence, "check the path")
        found.append(mount)
    return tuple(found)
