"""Planning of a launch: gather facts, settings and files, then select and assemble."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aam.contract.errors import MissingInput, NotPermitted, Unavailable
from launcher import check_reports, config, images, input_files
from launcher.detect import detect
from launcher.engines import ENGINES, native
from launcher.engines.sif import SIF
from launcher.host.facts import Gpu, Host
from launcher.host.versions import with_versions
from launcher.plan.assembly import assemble_plan
from launcher.plan.devices import ABSENT, denials
from launcher.plan.inputs import LaunchContext, LaunchInputs
from launcher.plan.mounts import Mount, parse_bind
from launcher.plan.plan import Plan
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
    available = images.built(settings, catalog) if host.live else images.assumed(settings, catalog)
    catalog = images.measured(catalog, available, settings.text("runtime"))
    if host.live and not request.launcher_options.get("--recheck"):
        reports = check_reports.folder(os.environ)
        catalog = check_reports.with_failures(catalog, host, available, reports)
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


def require_devices(host: Host, gpus: Sequence[Gpu]) -> None:
    """Check that the user may use the devices of the GPUs that were chosen.

    Raises:
        NotPermitted: with the group that may, and how to get into it.
        Unavailable: a device node is not there.
    """
    for denial in denials(host, gpus):
        error_class = Unavailable if denial.cause == ABSENT else NotPermitted
        raise error_class(denial.cause, denial.evidence, denial.remedy)


def _check(choice: Choice) -> None:
    built = choice.built
    if built is not None and ENGINES[choice.engine].traits.image_format == SIF:
        images.check_sif(built.place)
        if built.mismatch:
            evidence, remedy = built.mismatch
            raise MissingInput("The image is not locked", f"'{built.place}', {evidence}", remedy)


def requested_mounts(settings: LaunchSettings) -> tuple[Mount, ...]:
    """Return the mounts of --bind and of configurations."""
    return tuple(
        parse_bind(text, os.path.exists(text), entry.where)
        for entry in settings.given("bind")
        for text in entry.value
    )
