"""Options of the commands on images: list, build, lock, verify, remove, pull and publish."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options.field import ZERO_OR_MORE, option

# Options of several commands.
IMAGE_NAMES = option("Images of `aam-launch images`.", first=True, metavar="NAME")
ALLOW_ONE_SOURCE = option(
    "Take hashes that have one source without comparing them with the index.",
    default=False,
    basic=True,
)
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
class OneImage(EngineOptions):
    """The image that a command works on."""

    name: str = option("Image of `aam-launch images`.", first=True, metavar="NAME")


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
    allow_one_source: bool = ALLOW_ONE_SOURCE
    sign: Path | None = option(
        "Sign the SIF with this private key (PEM, no passphrase).",
        default=None,
        role="input",
        basic=True,
    )
    rebuild: bool = option(
        "Build even what is built of the same inputs.", default=False, basic=True
    )
    test: bool = TEST


@dataclass(frozen=True)
class ImagesLock:
    """Resolve pins that have no digest yet (needs a network), and record images copied here.

    Examples:
        aam-launch images lock rocm63
        aam-launch images lock cpu cuda
    """

    names: tuple[str, ...] = IMAGE_NAMES


@dataclass(frozen=True)
class ImagesVerify(SeveralImages):
    """Compare images with their record, run their own test, and `aam check` on this device.

    Examples:
        aam-launch images verify rocm63
        aam-launch images verify cpu --no-test
    """

    test: bool = TEST
    key: Path | None = option(
        "Require a signature of the SIF by this public key (PEM).",
        default=None,
        role="input",
        basic=True,
    )


@dataclass(frozen=True)
class ImagesSbom(OneImage):
    """Print the packages of an image, their versions and licences, as SPDX 2.3 JSON (an SBOM).

    Examples:
        aam-launch images sbom rocm63
        aam-launch images sbom cpu --engine podman
    """


@dataclass(frozen=True)
class ImagesRemove(SeveralImages):
    """Remove images and their record.

    Examples:
        aam-launch images rm cpu
        aam-launch images rm cpu --engine podman
    """


@dataclass(frozen=True)
class ImagesPrune:
    """Show which images are old, unused or superseded, and remove them with --yes.

    Examples:
        aam-launch images prune --unused 90
        aam-launch images prune --superseded --older-than 365 --yes
    """

    unused: float | None = option(
        "Images without a launch for so many days.",
        default=None,
        takes=ZERO_OR_MORE,
        metavar="DAYS",
        basic=True,
    )
    older_than: float | None = option(
        "Images that were built so many days ago.",
        default=None,
        takes=ZERO_OR_MORE,
        metavar="DAYS",
        basic=True,
    )
    superseded: bool = option(
        "Images that the catalog lists no longer, or with another PyTorch.",
        default=False,
        basic=True,
    )
    yes: bool = option("Remove them instead of showing them.", default=False, basic=True)


@dataclass(frozen=True)
class ImagesPull(EngineOptions):
    """Fetch the SIF of an image from a registry by its SHA-256, and record it.

    Examples:
        aam-launch images pull oras://registry.org/aam/rocm63:1 --name rocm63 --digest sha256:...
        aam-launch images pull oras://registry.org/aam/cpu:1 --name cpu --digest sha256:...
    """

    source: str = option("Place in the registry, oras://HOST/NAME:TAG.", first=True)
    name: str = option("Image of `aam-launch images` that it is.", metavar="NAME")
    digest: str = option("SHA-256 of the SIF, as `images publish` prints it.", metavar="sha256:...")


@dataclass(frozen=True)
class ImagesPublish(OneImage):
    """Push the SIF of an image to a registry, and print its SHA-256.

    Examples:
        aam-launch images publish rocm63 --to oras://registry.example.org/aam/rocm63:1
        aam-launch images publish cpu --to oras://registry.example.org/aam/cpu:1
    """

    to: str = option("Place in the registry, oras://HOST/NAME:TAG.", metavar="PLACE")
