"""Options of the commands on images: list, build, pull, verify."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options.field import option

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

    names: tuple[str, ...] = option("Images of `aam-launch images`.", first=True, metavar="NAME")


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
        aam-launch images build rocm63 --from copied.sif --sha256 3f5d...
    """

    build_arg: tuple[str, ...] = option(
        "Set a build argument: BASE, SNAPSHOT, TORCH or TORCH_INDEX.",
        default=(),
        metavar="NAME=VALUE",
        repeated=True,
        basic=True,
    )
    from_: Path | None = option(
        "Copy this SIF, or make one of this image archive, instead of building.",
        default=None,
        role="input",
        basic=True,
    )
    sha256: str | None = option(
        "SHA-256 that the file of --from must have.", default=None, metavar="HEX", basic=True
    )
    wheels: Path | None = option(
        "Folder of wheels to install from, without an index.",
        default=None,
        role="input",
        basic=True,
    )
    rebuild: bool = option(
        "Build even what is built of the same inputs.", default=False, basic=True
    )
    test: bool = TEST


@dataclass(frozen=True)
class ImagesPull(SeveralImages):
    """Pull images that a release has published, and record them (images.json).

    Examples:
        aam-launch images pull cpu --registry ghcr.io/owner/aam
        aam-launch images pull rocm63 --registry ghcr.io/owner/aam --digest sha256:3f5d...
    """

    registry: str = option(
        "Repository in a registry, where a release has its images as NAME-vVERSION.",
        metavar="REPOSITORY",
        basic=True,
    )
    tag: str | None = option(
        "Tag of one image instead of that of this version.", default=None, metavar="TAG", basic=True
    )
    digest: str | None = option(
        "Digest that one image must have.", default=None, metavar="sha256:HEX", basic=True
    )


@dataclass(frozen=True)
class ImagesVerify(SeveralImages):
    """Compare images with their record, run their own test, and `aam check` on this device.

    Examples:
        aam-launch images verify rocm63
        aam-launch images verify cpu --no-test
    """

    test: bool = TEST
