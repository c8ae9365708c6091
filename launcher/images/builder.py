"""The engines that can build: which one is there and new enough, and the words of its commands.

Everything here is a pure function but `find`, which asks an engine for its version.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.options.frozen import dataclass
from launcher.errors import Unavailable
from launcher.host.facts import EngineFact
from launcher.plan.choose import SIF_ENGINES

LEAST = {"apptainer": (1, 2), "singularity": (4, 0), "podman": (4, 0), "docker": (23, 0)}
"""The oldest that can build: build arguments in definitions came with Apptainer 1.2 and
SingularityCE 4.0, `--timestamp` and `--volume` together with podman 4, BuildKit by default with
Docker 23 (their change logs)."""
SAYS = re.compile(
    r"(apptainer|singularity|podman|docker)\S*\s+(?:version\s+)?v?(\d+)\.(\d+)\S*", re.I
)
FAST = "-comp zstd -Xcompression-level 1"
WHEELS = "/mnt"
PYTHON = "/opt/aam/bin/python"
SMOKE = "/opt/aam/containers/smoke.py"
LABELS = "/opt/aam/labels.json"


@dataclass(frozen=True)
class Builder:
    """An engine that can build: what it is, and its program (singularity may be Apptainer)."""

    engine: str
    program: str
    version: str

    @property
    def kind(self) -> str:
        """What it makes, as images.json calls it."""
        return "sif" if self.engine in SIF_ENGINES else self.engine


def find(engines: Sequence[EngineFact], wanted: str | None) -> Builder:
    """Return the engine to build with: the one asked for, or the first that can.

    Raises:
        Unavailable: there is none, or it is too old.
    """
    asked = [e for e in engines if wanted in (None, e.name)]
    if not asked:
        what = f"no {wanted}" if wanted else f"none of {', '.join(LEAST)}"
        raise Unavailable(
            "No engine to build with", f"{what} on PATH", "install apptainer or podman"
        )
    for fact in asked:
        if fact.obstacle is None:
            return _checked(fact)
    evidence = "; ".join(f"{fact.name}: {fact.obstacle}" for fact in asked)
    raise Unavailable("No engine can build here", evidence, "remove that obstacle")


def _checked(fact: EngineFact) -> Builder:
    done = subprocess.run([fact.path, "--version"], capture_output=True, text=True, check=False)
    said = SAYS.search(done.stdout)
    if said is None:
        evidence = f"`{fact.path} --version` says '{(done.stdout or done.stderr).strip()}'"
        raise Unavailable("The engine does not work", evidence, "install it again")
    engine, version = said[1].lower(), (int(said[2]), int(said[3]))
    if version < LEAST[engine]:
        least = ".".join(map(str, LEAST[engine]))
        raise Unavailable("The engine is too old to build", f"{said[0].strip()} at {fact.path}",
                          f"{engine} {least} or later is needed")  # fmt: skip
    return Builder(engine, fact.path, f"{said[2]}.{said[3]}")


def sif(
    builder: Builder,
    source: str,
    target: Path,
    arguments: Mapping[str, str],
    fast: bool,
    wheels: Path | None = None,
) -> list[str]:
    """Return the command that makes a SIF of a definition or of another image."""
    words = [builder.program, "build"]
    for name, value in arguments.items():
        # SingularityCE's and Pro's library takes no reference with both a tag and a digest.
        bare = builder.engine == "singularity" and name == "BASE" and "@" in value
        words += ["--build-arg", f"{name}={_without_tag(value) if bare else value}"]
    words += ["--bind", f"{wheels}:{WHEELS}:ro"] if wheels else []
    words += ["--mksquashfs-args", FAST] if fast else []
    return [*words, str(target), source]


def oci(
    builder: Builder,
    context: Path,
    name: str,
    tag: str,
    arguments: Mapping[str, str],
    epoch: int,
    wheels: Path | None = None,
) -> list[str]:
    """Return the command that builds an image for podman or docker."""
    words = [builder.program, "build", "--file", str(context / "containers" / f"{name}.Dockerfile")]
    words += ["--tag", tag, *_plain(builder, epoch)]
    words += ["--volume", f"{wheels}:{WHEELS}:ro"] if wheels else []
    for key, value in arguments.items():
        words += ["--build-arg", f"{key}={value}"]
    return [*words, str(context)]


def labelled(
    builder: Builder, labels: Mapping[str, str], recipe: Path, tag: str, epoch: int
) -> list[str]:
    """Return the command that gives an image its labels, which were measured in it, and its tag."""
    words = [builder.program, "build", "--file", str(recipe), "--tag", tag]
    words += _plain(builder, epoch)
    for name, value in labels.items():
        words += ["--label", f"{name}={value}"]
    return [*words, str(recipe.parent)]


def inside(builder: Builder, image: str, words: Sequence[str]) -> list[str]:
    """Return the command that runs a program in an image, with nothing of the host."""
    if builder.kind == "sif":
        start = [builder.program, "exec", "--contain", "--cleanenv", "--no-home"]
        return [*start, image, *words]
    start = [builder.program, "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp"]
    start += ["--pull=never", "--no-healthcheck", "--user=65534:65534"]
    return [*start, "--entrypoint", words[0], image, *words[1:]]


def _plain(builder: Builder, epoch: int) -> list[str]:
    """Return what makes two builds alike: podman sets the date of all that it adds.

    Without layers a build that fails leaves nothing in podman's storage.
    """
    if builder.engine == "podman":
        plain = ["--format", "docker", "--force-rm", "--layers=false"]
        return [*plain, "--timestamp", str(epoch)]
    return ["--provenance=false"]


def _without_tag(reference: str) -> str:
    name, _, digest = reference.partition("@")
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}@{digest}"
