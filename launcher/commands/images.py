"""`aam-launch images`: list, build, add, verify and remove images."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aam.contract.errors import MissingInput, UsageError
from aam.contract.suggestions import nearest
from launcher import config
from launcher.commands import parse_own, print_json
from launcher.engines import BUILDERS
from launcher.engines.sif import SIF
from launcher.images import index, inventory, stored
from launcher.options import HOST
from launcher.options.images import (
    Images,
    ImagesAdd,
    ImagesBuild,
    ImagesRemove,
    ImagesVerify,
)
from launcher.plan.assessment import assess, unrequested
from launcher.plan.catalog import Catalog
from launcher.plan.inputs import BuiltImage, LaunchInputs
from launcher.plan.request import Request
from launcher.planning import gather

ROW = "{:<15}  {:<4}  {}"
"""Image, whether it fits this host, stack."""


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Run one action on images; without an action, list them."""
    settings, catalog = config.configured(launcher_options)
    folder = Path(settings.image_dir.value).expanduser().absolute()
    action = argv[0] if argv else "list"
    if action == "list":
        parse_own(Images, argv[1:], "images")
        inputs = gather(
            Request("check", {}, launcher_options), launcher_options.get(HOST) or Path("/")
        )
        found = inventory.built(settings, catalog)
        _list("--json" in launcher_options, inputs, found, folder)
        return 0
    if action not in ACTIONS:
        known = ("list", *ACTIONS)
        remedy = nearest(action, known, f"known are {', '.join(known)}")
        raise UsageError("`images` has no such part", f"'{action}'", remedy)
    options_class, execute = ACTIONS[action]
    options = parse_own(options_class, argv[1:], f"images {action}")
    _require_engine(getattr(options, "engine", None))
    execute(options, catalog, folder)
    return 0


def _require_engine(name: str | None) -> None:
    known = list(BUILDERS)
    if name is not None and name not in known:
        remedy = nearest(name, known, f"known are {', '.join(known)}")
        raise UsageError("No such engine", f"--engine {name}", remedy)


def _format(engine: str | None) -> str | None:
    return BUILDERS[engine].traits.image_format if engine else None


def _list(as_json: bool, inputs: LaunchInputs, built: Sequence[BuiltImage], folder: Path) -> None:
    assessment, catalog = assess(unrequested(inputs)), inputs.catalog
    fitting = {image.name for image in assessment.fitting}
    against = {image.name: assessment.against(image.name) for image in catalog.images}
    found = list(stored.listed(folder, index.read(folder)))
    rows: list[dict[str, Any]] = [
        {
            "name": image.name,
            "title": image.title,
            "fits": image.name in fitting,
            "reason": str(against[image.name] or ""),
            "pins": dict(image.pins),
            "places": [place.place for place in built if place.image == image.name],
            "digests": [place.digest for place in built if place.image == image.name],
            "stored": [
                {key: value for key, value in vars(each).items() if key != "name"}
                for each in found
                if each.name == image.name
            ],
        }
        for image in catalog.images
    ]
    if as_json:
        print_json(rows)
        return
    print(ROW.format("image", "fits", "stack"))
    for row in rows:
        print(ROW.format(row["name"], "yes" if row["fits"] else "no", row["title"]))
        stores = [each.text for each in found if each.name == row["name"]]
        reason = against[row["name"]]
        why = [reason.evidence] if reason and (row["places"] or not row["fits"]) else []
        places = [*row["places"], *why] if row["places"] else ["; ".join(["not built", *why])]
        _print_below(*stores, *places)
    known = {image.name for image in catalog.images}
    for each in found:
        if each.name not in known:
            print(ROW.format(each.name, "no", "not in the catalog"))
            _print_below(each.text)


def _print_below(*texts: str) -> None:
    for text in texts:
        print(textwrap.fill(text, 80, initial_indent=" " * 4, subsequent_indent=" " * 6,
                            break_long_words=False, break_on_hyphens=False))  # fmt: skip


def _build(options: ImagesBuild, catalog: Catalog, folder: Path) -> None:
    from launcher.images import build, definitions

    chosen = [catalog.require(name) for name in options.names]
    options = replace(options, wheels=build.require_wheels(options.wheels))
    is_sif = _format(options.engine) in (None, SIF)
    if options.from_ and (options.build_arg or options.wheels or not is_sif):
        evidence = "--from makes a SIF of what is built already"
        remedy = "leave --build-arg, --wheels and other engines out"
        raise UsageError("Options that exclude each other", evidence, remedy)
    found = build.find_builder(options.engine, SIF if options.from_ else None)
    jobs = [
        build.BuildJob(
            image, found, folder, definitions.arguments(image, options.build_arg), options
        )
        for image in chosen
    ]
    for job in jobs if not options.from_ else ():
        definitions.require_locked(job.image.name, job.arguments)
    for job in jobs:
        made = build.build(job)
        place = made.get("reference") or folder / f"{job.image.name}.sif"
        remark = "" if made["new"] else " (built of the same inputs before; --rebuild repeats it)"
        digest = f"sha256:{made['sha256']}" if "sha256" in made else made["digest"]
        print(f"{job.image.name:<10} {place}  {digest}{remark}")


def _add(options: ImagesAdd, catalog: Catalog, folder: Path) -> None:
    if len(options.sif) != 2:
        evidence = f"given were {' '.join(options.sif) or 'neither'}"
        remedy = "`aam-launch images add NAME FILE.sif`"
        raise UsageError("The name of an image and its file are needed", evidence, remedy)
    name, file = catalog.require(options.sif[0]).name, Path(options.sif[1]).absolute()
    place = stored.add(name, file, options.sha256, folder)
    digest = index.entry(index.read(folder), name, SIF)["sha256"]
    print(f"{name:<10} {place}  sha256:{digest}")


def _verify(options: ImagesVerify, catalog: Catalog, folder: Path) -> None:
    from launcher.images import verify

    for image in [catalog.require(name) for name in options.names]:
        verify.verify(image, options.engine, folder, options.test)


def _remove(options: ImagesRemove, catalog: Catalog, folder: Path) -> None:
    image_format = _format(options.engine)
    for image in [catalog.require(name) for name in options.names]:
        with index.locked_image(folder, image.name):
            recorded = index.read(folder).get(image.name, {})
            sif = folder / f"{image.name}.sif"
            formats = {*recorded, *([SIF] if sif.exists() else [])}
            removed = sorted(formats if image_format is None else formats & {image_format})
            if not removed:
                evidence = f"{image.name} in '{folder}'"
                raise MissingInput("No such image is built", evidence, "see `aam-launch images`")
            for each in removed:
                stored.remove(folder, image.name, each)
                print(f"removed {image.name} ({each})")


ACTIONS: dict[str, tuple[type[Any], Callable[[Any, Catalog, Path], None]]] = {
    "build": (ImagesBuild, _build),
    "add": (ImagesAdd, _add),
    "verify": (ImagesVerify, _verify),
    "rm": (ImagesRemove, _remove),
}
