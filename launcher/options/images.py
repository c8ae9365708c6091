"""Options of the commands on images: list, build, add, verify, remove; of env."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options.field import option

# Options of several commands.
IMAGE_NAMES = option("Images of `aam-launch images`.", first=True, metavar="NAME")
WHEELS = option(
    "Folder of wheels to install from, without an index.", default=None, role="input", basic=True
)
TEST = option("Run the image's own test.", default=True, basic=True)


@dataclass(frozen=True)
class EngineOptions:
    """Container engine of a command on images."""

    engine: str | None = option(
        "Container engine; by default the first that can.",
        default=None,
        metavar="NAME",
        basic=True,
    )


@dataclass(frozen=True)
class SeveralImages(EngineOptions):
    """Images that a command works on."""

    names: tuple[str, ...] = IMAGE_NAMES


@dataclass(frozen=True)
class Images:
    """List the images: versions, where they are, and whether they fit this host.

    Examples:
        aam-launch images
        aam-launch images --json --image-dir /project/aam/images
    """


@dataclass(frozen=True)
class ImagesBuild(SeveralImages):
    """Build images into the image folder and record what was built (images.json).

    Examples:
        aam-launch images build cpu
        aam-launch images build rocm63 --engine podman
    """

    build_arg: tuple[str, ...] = option(
        "Set a build argument: BASE, SNAPSHOT, TORCH or TORCH_INDEX.",
        default=(),
        metavar="NAME=VALUE",
        repeated=True,
        basic=True,
    )
    from_: str | None = option(
        "Make a SIF of an archive, or of an image that another engine has.",
        default=None,
        metavar="FILE",
        basic=True,
    )
    wheels: Path | None = WHEELS
    fast: bool = option("Compress less: a larger SIF in much less time.", default=False, basic=True)
    rebuild: bool = option(
        "Build even what is built of the same inputs.", default=False, basic=True
    )
    test: bool = TEST


@dataclass(frozen=True)
class ImagesAdd:
    """Record a SIF that was copied or pulled, after a check of its label and its SHA-256.

    Examples:
        aam-launch images add rocm63 rocm63.sif
        aam-launch images add cpu pulled/cpu.sif --sha256 3f5d...
    """

    sif: tuple[str, ...] = option(
        "Image of `aam-launch images`, and the SIF, which is copied into the image folder.",
        first=True,
        metavar="NAME FILE",
    )
    sha256: str | None = option(
        "SHA-256 that the file must have.", default=None, metavar="HEX", basic=True
    )


@dataclass(frozen=True)
class ImagesVerify(SeveralImages):
    """Compare images with their record, run their own test, and `aam check` on this device.

    Examples:
        aam-launch images verify rocm63
        aam-launch images verify cpu --no-test
    """

    test: bool = TEST


@dataclass(frozen=True)
class ImagesRemove(SeveralImages):
    """Remove images and their record.

    Examples:
        aam-launch images rm cpu
        aam-launch images rm cpu --engine podman
    """


@dataclass(frozen=True)
class Env:
    """Make a virtual environment from the lock of an image, and run `aam check` in it.

    Examples:
        aam-launch env auto ~/aam-env --dry-run
        aam-launch env rocm63 /project/aam/rocm63
    """

    place: tuple[str, ...] = option(
        "Image whose lock is installed, 'auto' for the one that fits this host, and the folder.",
        first=True,
        metavar="NAME FOLDER",
    )
    python: str | None = option(
        "Python to make it with, of the version that the lock is for.",
        default=None,
        metavar="FILE",
        basic=True,
    )
    wheels: Path | None = WHEELS
