"""Options of the launcher's own commands: explain, doctor, images, env, submit, jobs and others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.contract.completion import Completion
from aam.contract.options.field import ZERO_OR_MORE, option
from launcher.slurm.submit_options import SubmitOptions

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

    @property
    def names(self) -> tuple[str, ...]:
        """The image, as other commands have several."""
        return (self.name,)


@dataclass(frozen=True)
class SiteOptions:
    """Site that a command reads."""

    name: str = option(
        "Name of the site, or its file.", default="", first=True, metavar="SITE", basic=True
    )


@dataclass(frozen=True)
class Explain:
    """Show every decision about a command, its reason and its source; run nothing.

    Examples:
        aam-launch explain pretrain --table study.biom --tree tree.nwk --output-dir run
        aam-launch explain pretrain --host node.tar
    """


@dataclass(frozen=True)
class Doctor:
    """Show GPUs, drivers and engines of this host, what would fail, and the remedy.

    Examples:
        aam-launch doctor
        aam-launch doctor --capture node.tar
    """

    capture: Path | None = option(
        "Write the facts about this host that decisions depend on to a tar.",
        default=None,
        role="output",
        basic=True,
    )


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

    @property
    def names(self) -> tuple[str, ...]:
        """The image, as other commands have several."""
        return (self.name,)


@dataclass(frozen=True)
class ImagesPublish(OneImage):
    """Push the SIF of an image to a registry, and print its SHA-256.

    Examples:
        aam-launch images publish rocm63 --to oras://registry.example.org/aam/rocm63:1
        aam-launch images publish cpu --to oras://registry.example.org/aam/cpu:1
    """

    to: str = option("Place in the registry, oras://HOST/NAME:TAG.", metavar="PLACE")


@dataclass(frozen=True)
class EnvOptions:
    """Options of a virtual environment."""

    stack: str | None = option(
        "Stack, an image of `aam-launch images`; by default the newest that serves the GPUs.",
        default=None,
        metavar="NAME",
        basic=True,
    )
    folder: Path | None = option(
        "Folder of the environment; by default ~/.local/share/aam/environments/NAME.",
        default=None,
        basic=True,
    )
    installer: Literal["uv", "pip"] | None = option(
        "Program that installs; by default uv where it is on PATH, else pip.",
        default=None,
        basic=True,
    )
    python: str | None = option(
        "Python to make it with, of a version that the lock has.",
        default=None,
        metavar="FILE",
        basic=True,
    )
    wheels: Path | None = WHEELS


@dataclass(frozen=True)
class EnvCreate(EnvOptions):
    """Make a virtual environment from the lock of an image, and run `aam check` in it.

    Examples:
        aam-launch env create
        aam-launch env create --stack cpu --folder /project/aam/cpu
    """

    allow_one_source: bool = ALLOW_ONE_SOURCE


@dataclass(frozen=True)
class EnvShow(EnvOptions):
    """Show which stack an environment would have, why, and the commands that make it.

    Examples:
        aam-launch env show
        aam-launch env show --host node.tar
    """


@dataclass(frozen=True)
class Jobs:
    """List the jobs that were submitted: state, time left, progress and last metrics.

    Examples:
        aam-launch jobs
        aam-launch jobs --json
    """


@dataclass(frozen=True)
class SiteShow(SiteOptions):
    """Show what is known about a cluster.

    Examples:
        aam-launch site show cosmos
        aam-launch site show ./my_cluster.yaml --json
    """


@dataclass(frozen=True)
class SiteCheck(SiteOptions):
    """Compare what is known about a cluster with this host, a login node of it.

    Examples:
        aam-launch site check cosmos
        aam-launch site check cosmos --json
    """


@dataclass(frozen=True)
class Trust:
    """Accept the settings in the aam-launch.yaml of a folder as they are now.

    Examples:
        aam-launch trust
        aam-launch trust project --revoke
    """

    file: Path = option(
        "Folder or file; the current folder by default.", default=Path("."), first=True, basic=True
    )
    revoke: bool = option("Trust these settings no longer.", default=False, basic=True)


@dataclass(frozen=True)
class Replay:
    """Run the run of a run.json again; further options replace those of that run.

    Examples:
        aam-launch replay run/run.json --output-dir again
        aam-launch replay run --output-dir again --dry-run
    """

    record: Path = option("The run.json, or the folder of the run.", first=True)


LAUNCHER_COMMANDS: dict[str, dict[str, type]] = {
    "Understand": {"explain": Explain, "doctor": Doctor, "replay": Replay},
    "Images": {
        "images": Images,
        "images build": ImagesBuild,
        "images lock": ImagesLock,
        "images verify": ImagesVerify,
        "images sbom": ImagesSbom,
        "images rm": ImagesRemove,
        "images prune": ImagesPrune,
        "images pull": ImagesPull,
        "images publish": ImagesPublish,
    },
    "Environments": {"env create": EnvCreate, "env show": EnvShow},
    "Slurm": {
        "submit": SubmitOptions,
        "jobs": Jobs,
        "site show": SiteShow,
        "site check": SiteCheck,
    },
    "Set up": {"trust": Trust, "completion": Completion},
}
"""Group of the help page -> command -> its options.

The module is that of the first part of the name in `launcher/commands/`.
"""

OWN = {
    name: options_class
    for group in LAUNCHER_COMMANDS.values()
    for name, options_class in group.items()
}
"""The same, without the groups."""

FORWARDING = ("explain", "submit")
"""Commands that a command line of `aam` follows."""

READ = {
    "explain": ("--json", "--host", "--image", "--runtime", "--site"),
    "doctor": ("--json", "--host", "--image-dir"),
    "images": ("--json", "--image-dir"),
    "env create": ("--host", "--force", "--site"),
    "env show": ("--json", "--host", "--force", "--site"),
    "replay": ("--dry-run", "--force"),
    "jobs": ("--json",),
    "site show": ("--json",),
    "site check": ("--json",),
    "submit": ("--dry-run", "--site", "--image", "--force"),
}
"""Options of the launcher that the help page of a command names, besides --image-dir for images."""
