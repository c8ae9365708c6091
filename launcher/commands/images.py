"""`aam-launch images`: list, build, lock, verify and remove images."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.contract.errors import MissingInput, UsageError
from aam.contract.suggestions import nearest
from launcher import config, doctor, images
from launcher.commands import parse_own, print_json
from launcher.detect import detect
from launcher.engines import ENGINES
from launcher.engines.sif import SIF
from launcher.explain import warn
from launcher.images import builder, index
from launcher.images.stored import UNKNOWN, stored
from launcher.options import (
    Images,
    ImagesBuild,
    ImagesLock,
    ImagesPrune,
    ImagesPublish,
    ImagesPull,
    ImagesRemove,
    ImagesSbom,
    ImagesVerify,
)
from launcher.plan.catalog import Catalog, Image

HEADER = ("format", "size", "age", "verified", "last used")
ROW = "{:<9} {:<26} {:<4} {:<7} {:<9} {:<9} {:<10} {:<10} {}"
"""Image, stack, whether it fits this host, HEADER, place."""


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Run one action on images; without an action, list them."""
    settings, catalog = config.configured(launcher_options)
    for line in warn(settings.findings):
        print(line, file=sys.stderr)
    action, rest = (argv[0], argv[1:]) if argv else ("list", argv)
    folder = Path(settings.text("image_dir")).expanduser().absolute()
    if action == "list":
        parse_own(Images, rest, "images")
        found = images.built(settings, catalog)
        return _list("--json" in launcher_options, catalog, found, folder)
    if action not in ("prune", *ACTIONS):
        known = ("list", "prune", *ACTIONS)
        remedy = nearest(action, known, f"known are {', '.join(known)}")
        raise UsageError("`images` has no such part", f"'{action}'", remedy)
    if action == "prune":
        return _prune(parse_own(ImagesPrune, rest, "images prune"), catalog, folder)
    options_class, execute = ACTIONS[action]
    options = parse_own(options_class, rest, f"images {action}")
    _require_engine(getattr(options, "engine", None))
    return execute([_image(name, catalog) for name in options.names], options, folder)


def _require_engine(name: str | None) -> None:
    known = [engine.name for engine in ENGINES.values() if engine.least]
    if name is not None and name not in known:
        remedy = nearest(name, known, f"known are {', '.join(known)}")
        raise UsageError("No such engine", f"--engine {name}", remedy)


def _image(name: str, catalog: Catalog) -> Image:
    image = catalog.image(name)
    if image is None:
        known = [known.name for known in catalog.images]
        remedy = nearest(name, known, f"known are {', '.join(known)}")
        raise UsageError("No such image", f"'{name}'", remedy)
    return image


def _list(
    json: bool,
    catalog: Catalog,
    built: Sequence[images.BuiltImage],
    folder: Path,
) -> int:
    from launcher.images import definitions

    fitting = {image.name for image in doctor.fitting(detect(), catalog)}
    found = list(stored(folder, index.read(folder)))
    rows = [
        {
            "name": image.name,
            "title": image.title,
            "fits": image.name in fitting,
            "pins": dict(image.pins),
            "places": [place.place for place in built if place.image == image.name],
            "digests": [place.digest for place in built if place.image == image.name],
            "without_hash": definitions.without_hash(image, folder),
            "one_source": definitions.with_one_source(image, folder),
            "stored": [
                {key: value for key, value in vars(each).items() if key not in ("name", "record")}
                for each in found
                if each.name == image.name
            ],
        }
        for image in catalog.images
    ]
    if json:
        print_json(rows)
        return 0
    print(ROW.format("image", "stack", "fits", *HEADER, "place"))
    for row in rows:
        columns = [each.columns for each in found if each.name == row["name"]]
        places = _listed(row["places"]) or "not built"
        if pins := _listed(row["without_hash"]):
            places += f"; cannot be built without its index: no SHA-256 of {pins} is known"
        elif pins := _listed(row["one_source"]):
            places += (
                "; cannot be built without its index or --allow-one-source: one source for the "
                f"SHA-256 of {pins}"
            )
        fits = "yes" if row["fits"] else "no"
        for state in columns or [(UNKNOWN,) * len(HEADER)]:
            print(ROW.format(row["name"], row["title"], fits, *state, places))
    known = {image.name for image in catalog.images}
    for each in found:
        if each.name not in known:
            print(ROW.format(each.name, "not in the catalog", "no", *each.columns, ""))
    return 0


def _listed(names: object) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _build(chosen: Sequence[Image], options: ImagesBuild, folder: Path) -> int:
    from launcher.images import build, definitions

    wheels = build.require_wheels(options.wheels)
    sif = options.engine is None or ENGINES[options.engine].traits.image_format == SIF
    if options.sign and not sif:
        evidence, remedy = f"--sign with --engine {options.engine}", "sign a SIF"
        raise UsageError("This engine signs no images", evidence, remedy)
    if options.from_ and (options.build_arg or wheels or not sif):
        evidence = "--from makes a SIF of what is built already"
        remedy = "leave --build-arg, --wheels and other engines out"
        raise UsageError("Options that exclude each other", evidence, remedy)
    present = detect().engines
    if options.from_ or options.sign:
        present = tuple(engine for engine in present if engine.traits.image_format == SIF)
    found = builder.find(present, options.engine)
    jobs = [
        build.BuildJob(image, found, folder, definitions.arguments(image, options.build_arg),
                       wheels, options.from_, options.fast, options.test, options.rebuild,
                       options.allow_one_source, options.sign and options.sign.absolute())
        for image in chosen
    ]  # fmt: skip
    for job in jobs:
        made = build.build(job)
        place = made.get("reference") or folder / f"{job.image.name}.sif"
        remark = "" if made["new"] else " (built of the same inputs before; --rebuild repeats it)"
        digest = f"sha256:{made['sha256']}" if "sha256" in made else made["digest"]
        print(f"{job.image.name:<10} {place}  {digest}{remark}")
    return 0


def _sif_engine(name: str | None) -> builder.Builder:
    sif = [engine for engine in detect().engines if engine.traits.image_format == SIF]
    return builder.find(sif, name)


def _pull(chosen: Sequence[Image], options: ImagesPull, folder: Path) -> int:
    from launcher.images import transfer

    folder.mkdir(parents=True, exist_ok=True)
    (image,) = chosen
    engine = _sif_engine(options.engine)
    place = transfer.pull(image.name, options.source, options.digest, engine, folder)
    print(f"{image.name:<10} {place}")
    return 0


def _publish(chosen: Sequence[Image], options: ImagesPublish, folder: Path) -> int:
    from launcher.images import transfer

    (image,) = chosen
    sha256 = transfer.publish(image.name, options.to, _sif_engine(options.engine), folder)
    print(f"{image.name:<10} {options.to}  sha256:{sha256}")
    return 0


def _lock(chosen: Sequence[Image], options: ImagesLock, folder: Path) -> int:
    from launcher.images.lock import lock

    return lock(chosen, folder)


def _verify(chosen: Sequence[Image], options: ImagesVerify, folder: Path) -> int:
    from launcher.images import verify

    engines = detect().engines
    return verify.verify(chosen, options.engine, folder, engines, options.test, options.key)


def _sbom(chosen: Sequence[Image], options: ImagesSbom, folder: Path) -> int:
    from launcher.images import sbom

    (image,) = chosen
    recorded = index.read(folder).get(image.name, {})
    image_format = ENGINES[options.engine].traits.image_format if options.engine else None
    found = [each for each in sorted(recorded) if image_format in (None, each)]
    if not found:
        raise index.not_recorded(image.name, folder)
    each = SIF if SIF in found else found[0]
    text = sbom.stored(folder, image.name, each, recorded[each])
    if text is None:
        engine = builder.of_format(detect().engines, each, options.engine)
        text = sbom.make(folder, image.name, engine, recorded[each])
    print(text, end="")
    return 0


def _prune(options: ImagesPrune, catalog: Catalog, folder: Path) -> int:
    from launcher.images import removal
    from launcher.slurm import history, queue

    rules = removal.PruneRules(options.unused, options.older_than, options.superseded)
    if rules == removal.PruneRules(None, None, False):
        remedy = "give --unused DAYS, --older-than DAYS or --superseded"
        raise UsageError("No rule by which to prune", "no option selects images", remedy)

    def in_queue(place: str) -> list[str]:
        submitted = history.naming(history.state_folder(os.environ), place)
        if not submitted or not queue.available():
            return []
        active = {number.partition("_")[0] for number, job in queue.queued().items() if job.active}
        return [number for number in submitted if number in active]

    removal.prune(folder, catalog, rules, in_queue, options.yes)
    return 0


def _remove(chosen: Sequence[Image], options: ImagesRemove, folder: Path) -> int:
    from launcher.images import removal

    image_format = ENGINES[options.engine].traits.image_format if options.engine else None
    for image in chosen:
        with index.locked_image(folder, image.name):
            recorded = index.read(folder).get(image.name, {})
            sif = folder / f"{image.name}.sif"
            formats = {*recorded, *([SIF] if sif.exists() else [])}
            removed = sorted(formats if image_format is None else formats & {image_format})
            if not removed:
                evidence = f"{image.name} in '{folder}'"
                raise MissingInput("No such image is built", evidence, "see `aam-launch images`")
            for each in removed:
                removal.remove(folder, image.name, each)
                print(f"removed {image.name} ({each})")
    return 0


ACTIONS: dict[str, tuple[type[Any], Callable[[Sequence[Image], Any, Path], int]]] = {
    "build": (ImagesBuild, _build),
    "lock": (ImagesLock, _lock),
    "verify": (ImagesVerify, _verify),
    "sbom": (ImagesSbom, _sbom),
    "rm": (ImagesRemove, _remove),
    "pull": (ImagesPull, _pull),
    "publish": (ImagesPublish, _publish),
}
