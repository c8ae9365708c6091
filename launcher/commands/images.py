"""`aam-launch images`: list, build, lock, verify and remove images."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.contract.errors import MissingInput, UsageError
from aam.contract.suggestions import nearest
from launcher import config, doctor, images
from launcher.commands import parse_own, print_json
from launcher.detect import detect
from launcher.engines import ENGINES, of_format
from launcher.engines.base import GIB, which
from launcher.engines.sif import SIF
from launcher.explain import warn
from launcher.images import builder, index
from launcher.options import (
    Images,
    ImagesBuild,
    ImagesLock,
    ImagesPublish,
    ImagesPull,
    ImagesRemove,
    ImagesVerify,
)
from launcher.plan.catalog import Catalog, Image

DAY_NS = 86400 * 10**9


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
    if action not in ACTIONS:
        known = ("list", *ACTIONS)
        remedy = nearest(action, known, f"known are {', '.join(known)}")
        raise UsageError("`images` has no such part", f"'{action}'", remedy)
    kind, execute = ACTIONS[action]
    options = parse_own(kind, rest, f"images {action}")
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
    recorded = index.read(folder)
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
            "records": {
                kind: {
                    key: record[key] for key in ("bytes", "mtime_ns", "verified") if key in record
                }
                for kind, record in recorded.get(image.name, {}).items()
            },
        }
        for image in catalog.images
    ]
    if json:
        print_json(rows)
        return 0
    for row in rows:
        places = _listed(row["places"]) or "not built"
        if pins := _listed(row["without_hash"]):
            places += f"; cannot be built without its index: no SHA-256 of {pins} is known"
        elif pins := _listed(row["one_source"]):
            places += (
                "; cannot be built without its index or --allow-one-source: one source for the "
                f"SHA-256 of {pins}"
            )
        places += "".join(map(_state, recorded.get(str(row["name"]), {}).values()))
        fits = "fits this host" if row["fits"] else "does not fit"
        print(f"{row['name']:<10} {row['title']:<28} {fits:<15} {places}")
    return 0


def _state(record: Mapping[str, Any]) -> str:
    """Return size, age and last verification of a recorded image, as far as they are recorded."""
    text = f", {record['bytes'] / GIB:.1f} GiB" if "bytes" in record else ""
    if "mtime_ns" in record:
        text += f", {(time.time_ns() - record['mtime_ns']) // DAY_NS} days old"
    return text + (f", verified {record['verified']}" if "verified" in record else ", not verified")


def _listed(names: object) -> str:
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _build(chosen: Sequence[Image], options: ImagesBuild, folder: Path) -> int:
    from launcher.images import build, definitions

    wheels = options.wheels.absolute() if options.wheels else None
    if wheels and not any(wheels.glob("*.whl")):
        remedy = "fill it: pip download --no-deps --require-hashes -r containers/locks/NAME.txt"
        raise MissingInput("No wheels to install from", f"'{wheels}'", remedy)
    sif = options.engine is None or ENGINES[options.engine].traits.image_format == SIF
    if options.from_ and (options.build_arg or wheels or not sif):
        evidence = "--from makes a SIF of what is built already"
        remedy = "leave --build-arg, --wheels and other engines out"
        raise UsageError("Options that exclude each other", evidence, remedy)
    present = detect().engines
    if options.from_:
        present = tuple(engine for engine in present if engine.traits.image_format == SIF)
    found = builder.find(present, options.engine)
    jobs = [
        build.BuildJob(image, found, folder, definitions.arguments(image, options.build_arg),
                       wheels, options.from_, options.fast, options.test, options.anew,
                       options.allow_one_source)
        for image in chosen
    ]  # fmt: skip
    for job in jobs:
        made = build.build(job)
        place = made.get("reference") or folder / f"{job.image.name}.sif"
        remark = "" if made["new"] else " (built of the same inputs before; --anew builds it again)"
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

    return verify.verify(chosen, options.engine, folder, detect().engines, options.test)


def _remove(chosen: Sequence[Image], options: ImagesRemove, folder: Path) -> int:
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


ACTIONS: dict[str, tuple[type[Any], Callable[[Sequence[Image], Any, Path], int]]] = {
    "build": (ImagesBuild, _build),
    "lock": (ImagesLock, _lock),
    "verify": (ImagesVerify, _verify),
    "rm": (ImagesRemove, _remove),
    "pull": (ImagesPull, _pull),
    "publish": (ImagesPublish, _publish),
}
