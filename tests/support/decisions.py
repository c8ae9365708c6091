"""Choice of GPUs, image and engine for a host, for tests of the selection."""

from __future__ import annotations

from aam.contract.yaml_document import load
from launcher.engines import ENGINES
from launcher.host.facts import EngineFact, Host
from launcher.plan.catalog import SHIPPED, catalog_of
from launcher.plan.choice import BuiltImage, Choice, NativeStack
from launcher.plan.gpu_use import GpuUse
from launcher.plan.selection import choose
from launcher.plan.settings import Entry, merge

CATALOG = catalog_of(load(SHIPPED.read_text()))
ALL = tuple(
    BuiltImage(image.name, ("apptainer", "podman"), f"/i/{image.name}.sif")
    for image in CATALOG.images
)
NATIVE = NativeStack("/usr/bin/python3", (), False, "2.13.0+cpu", "cpu")
PLAIN = NativeStack("/usr/bin/python3", ("torch",), False, None, "cpu")


def engine(name: str, obstacle: str | None = None) -> EngineFact:
    return EngineFact(name, f"/usr/bin/{name}", obstacle, traits=ENGINES[name].traits)


APPTAINER = engine("apptainer")


def decide(
    host: Host,
    built: tuple[BuiltImage, ...] = ALL,
    native: NativeStack = NATIVE,
    force: bool = False,
    use: GpuUse = "automatic",
    **given: str,
) -> Choice:
    layer = {key: Entry(value, f"command line, --{key}") for key, value in given.items()}
    defaults = {"image_dir": Entry("/i", "default")}
    return choose(host, CATALOG, merge([defaults, layer]), built, native, force, use)


def name_of(choice: Choice) -> str | None:
    return choice.image.name if choice.image else None


def why(choice: Choice, subject: str) -> str:
    return next(d.why for d in choice.decisions if d.subject == subject)
