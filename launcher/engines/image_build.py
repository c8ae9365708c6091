"""Inputs of an image build, the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ImageBuild:
    """Inputs of an image build.

    Attributes:
        program: absolute path of the engine.
        name: of the image.
        arguments: build arguments by name.
        context: folder with `containers` and `aam`, from which definitions copy.
        scratch: folder for temporary files, removed afterwards.
        epoch: date of every file that the build adds, in seconds since 1970.
        wheels: folder of wheels to install instead of those of an index.
        archive: an image to convert instead of building a definition: a SIF or a Docker archive.
        fast: compress less.
        test: run the image's own test before it replaces another.
        place: file to write, for an engine whose images are files.
        sign: PEM private key to sign that file with.
    """

    program: str
    name: str
    arguments: Mapping[str, str]
    context: Path
    scratch: Path
    epoch: int
    wheels: Path | None
    archive: Path | None
    fast: bool
    test: bool
    place: Path
    sign: Path | None = None
