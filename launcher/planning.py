"""Planning of a launch: gather facts, settings and files, then select and assemble."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from aam.contract.errors import MissingInput, Unavailable
from launcher import check_reports, config, input_files
from launcher.detect import detect
from launcher.engines import ENGINES, native
from launcher.engines.sif import SIF
from launcher.engines.sif_file import check_sif
from launcher.host.facts import Host
from launcher.host.versions import with_versions
from launcher.images import inventory
from launcher.plan.assembly import assemble_plan
from launcher.plan.catalog import Catalog
from launcher.plan.inputs import BuiltImage, LaunchContext, LaunchInputs
from launcher.plan.mounts import Mount, parse_bind
from launcher.plan.plan import Plan
from launcher.plan.refusals import require_devices
from launcher.plan.request import Request
from launcher.plan.selection import Choice, choose
from launcher.plan.settings import LaunchSettings


def plan_launch(
    request: Request, host_root: Path = Path("/"), starting: bool = False
) -> tuple[Host, Plan]:
    """Decide how to run `request` on the host below `host_root`.

    Args:
        request: the command and its options.
        host_root: "/", or a capture.
        starting: the plan will run, and its record holds the version of the engine; an engine whose
            version is not cached is started for it, which takes too long for `explain` unless the
            plan depends on it.

    Raises:
        AamError: the launch is impossible, with the reason.
    """
    folder = os.getcwd()
    settings = config.read(request.launcher_options, os.environ, Path(folder))
    catalog = config.catalog(settings)
    host = detect(host_root)
    look = input_files.path_facts if host.live else input_files.lexical_path_facts
    recheck = bool(request.launcher_options.get("--recheck"))
    available, catalog = stacks(host, settings, catalog, recheck)
    user = host.user.uid if host.user else 0
    job = host.slurm.job if host.slurm else None
    context = LaunchContext(
        folder=folder,
        private=config.private_folder(settings, user, host.name, job),
        home=os.path.expanduser("~"),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        requested_mounts=requested_mounts(settings),
    )
    inputs = LaunchInputs(
        request, host, catalog, settings, available, native.detect_stack(), context,
        look(request, folder),
    )  # fmt: skip
    # Every round but the last excludes an image that does not compute on these GPUs.
    while True:
        choice = choose(inputs)
        if host.live:
            version_counts = bool(host.cdi) and host.takes_cdi(choice.engine)
            startable = (choice.engine,) if starting or version_counts else ()
            host = with_versions(host, startable)
            inputs = replace(inputs, host=host)
            _check(choice)
            input_files.require_outputs(inputs.paths)
        require_devices(host, choice.gpus)
        known = check_reports.report_for(inputs, choice, starting)
        if known is None or not known.failure or request.force:
            break
        if choice.image is None or settings.text("image") != "auto":
            if known.report is None:
                raise Unavailable(*check_reports.not_computing(known.failure))
            break  # the plan shows that aam will refuse
        catalog = check_reports.with_failure(
            inputs.catalog, choice.image.name, choice.gpus[0], known.failure
        )
        inputs = replace(inputs, catalog=catalog)
    plan = assemble_plan(inputs, choice, known)
    if host.live and plan.folders:
        place = input_files.nearest_folder(plan.folders[0])
        input_files.require_space(
            place, "No room for caches and temporary files", "give another --scratch"
        )
    return host, plan


def stacks(
    host: Host, settings: LaunchSettings, catalog: Catalog, recheck: bool = False
) -> tuple[tuple[BuiltImage, ...], Catalog]:
    """Return the built images, and the catalog with what was measured in them and on this host.

    Args:
        recheck: leave stored failures of `aam check` out, which is repeated.
    """
    if not host.live:
        return inventory.assumed(settings, catalog), catalog
    built = inventory.built(settings, catalog)
    catalog = inventory.measured(catalog, built, settings.text("runtime"))
    if not recheck:
        reports = check_reports.folder(os.environ)
        catalog = check_reports.with_reports(catalog, host, built, reports)
    return built, catalog


def _check(choice: Choice) -> None:
    built = choice.built
    if built is not None and ENGINES[choice.engine].traits.image_format == SIF:
        check_sif(built.place)
        if built.mismatch:
            evidence, remedy = built.mismatch
            cause = "The image is not the recorded one"
            raise MissingInput(cause, f"'{built.place}', {evidence}", remedy)


def requested_mounts(settings: LaunchSettings) -> tuple[Mount, ...]:
    """Return the mounts of --bind and of configurations."""
    return tuple(
        parse_bind(text, os.path.exists(text), entry.where)
        for entry in settings.given("bind")
        for text in entry.value
    )
