"""`aam-launch images`: list, build, lock, verify and remove images."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aam.contract.errors import MissingInput, UsageError
from aam.contract.suggestions import nearest
from launcher import config, doctor, images
from launcher.commands import no_more, print_json
from launcher.detect import detect
from launcher.engines import ENGINES, of_format
from launcher.engines.base import which
from launcher.engines.sif import SIF
from launcher.explain import warn
from launcher.images import index
from launcher.images.options import ImagesArguments, parse_images_arguments
from launcher.plan.catalog import Catalog, Image
from launcher.plan.launcher_options import split_launcher_options


def run(argv: Sequence[str]) -> int:
    """Run one action on images; without an action, list them."""
    launcher_options, rest = split_launcher_options(argv)
    settings, catalog = config.configured(launcher_options)
    for line in warn(settings.findings):
        print(line, file=sys.stderr)
    folder = Path(settings.text("image_dir")).expanduser().absolute()
    action, rest = (rest[0], rest[1:]) if rest else ("list", rest)
    if action not in ACTIONS:
        remedy = nearest(action, ACTIONS, f"known are {', '.join(ACTIONS)}")
        raise UsageError("`images` has no such part", f"'{action}'", remedy)
    if action == "list":
        no_more(rest, "images list")
        return _list(launcher_options, catalog, images.built(settings, catalog), folder)
    options = parse_images_arguments(action, rest)
    chosen = [_image(name, catalog) for name in options.names]
    return ACTIONS[action](chosen, options, folder)


def _image(name: str, catalog: Catalog) -> Image:
    image = catalog.image(name)
    if image is None:
        known = [known.name for known in catalog.images]
        remedy = nearest(name, known, f"known are {', '.join(known)}")
        raise UsageError("No such image", f"'{name}'", remedy)
    return image


def _list(
    launcher_options: Mapping[str, tuple[str, ...]],
    catalog: Catalog,
    built: Sequence[images.BuiltImage],
    folder: Path,
) -> int:
    from launcher.images import definitions

    fitting = {image.name for image in doctor.fitting(detect(), catalog)}
    rows = [
        {
            "name": image.name,
            "title": image.title,
            "fits": image.name in fitting,
            "pins": dict(image.pins),
            "places": [place.place for place in built if place.image == image.name],
            "digests": [place.digest for place in built if place.image == image.name],
            "without_hash": definitions.without_hash(image, folder),
        }
        for image in catalog.images
    ]
    if "--json" in launcher_options:
        print_json(rows)
        return 0
    for row in rows:
        places = ", ".join(map(str, row["places"])) or "not built"  # type: ignore[call-overload]
        if row["without_hash"]:
            pins = ", ".join(map(str, row["without_hash"]))  # type: ignore[call-overload]
            places += f"; cannot be built without its index: no SHA-256 of {pins} is known"
        fits = "fits this host" if row["fits"] else "does not fit"
        print(f"{row['name']:<10} {row['title']:<28} {fits:<15} {places}")
    return 0


def _build(chosen: Sequence[Image], options: ImagesArguments, folder: Path) -> int:
    from launcher.images import build, builder, definitions

    present = detect().engines
    if options.source:
        present = tuple(engine for engine in present if engine.traits.image_format == SIF)
    found = builder.find(present, options.engine)
    jobs = [
        build.BuildJob(image, found, folder, definitions.arguments(image, options.arguments),
                  options.wheels, options.source, options.fast, options.test, options.force)
        for image in chosen
    ]  # fmt: skip
    for job in jobs:
        made = build.build(job)
        place = made.get("reference") or folder / f"{job.image.name}.sif"
        remark = "" if made["new"] else " (built of the same inputs before; --anew builds it again)"
        digest = f"sha256:{made['sha256']}" if "sha256" in made else made["digest"]
        print(f"{job.image.name:<10} {place}  {digest}{remark}")
    return 0


def _lock(chosen: Sequence[Image], options: ImagesArguments, folder: Path) -> int:
    from launcher.images.lock import lock

    return lock(chosen, folder)


def _verify(chosen: Sequence[Image], options: ImagesArguments, folder: Path) -> int:
    from launcher.images import verify

    return verify.verify(chosen, options.engine, folder, detect().engines, options.test)


def _remove(chosen: Sequence[Image], options: ImagesArguments, folder: Path) -> int:
    image_format = ENGINES[options.engine].traits.image_format if options.engine else None
    for image in chosen:
        with index.locked(folder, f"{image.name}.build"):
            recorded = index.read(folder).get(image.name, {})
            sif = folder / f"{image.name}.sif"
            formats = {*recorded, *([SIF] if sif.exists() else [])}
            removed = sorted(formats if image_format is None else formats & {image_format})
            if not removed:
                evidence = f"{image.name} in '{folder}'"
                raise MissingInput("No such image is built", evidence, "see `aam-launch images`")
            for each in removed:
                engine = of_format(each)[0]
                program = which(engine.name, os.environ.get("PATH", "")) or engine.name
                entry = index.entry({image.name: recorded}, image.name, each)
                engine.remove(program, entry, sif)
                index.write(folder, image.name, each, None)
                print(f"removed {image.name} ({each})")
    return 0


ACTIONS: dict[str, Callable[[Sequence[Image], ImagesArguments, Path], int]] = {
    "list": lambda chosen, options, folder: 0,
    "build": _build,
    "lock": _lock,
    "verify": _verify,
    "rm": _remove,
}
