"""Job file: the request of a queued job, from which its nodes make the plan of a direct launch.

`aam-launch submit` writes it beside the output, and `launcher.slurm.job` reads it in the job. It is
JSON that a person may read and edit; it is validated against the dataclasses of this module.
"""

from __future__ import annotations

import json
import os
import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aam import __version__
from aam.contract.errors import DataError, MissingInput, UsageError
from aam.contract.files import write_json
from aam.contract.json_files import read_json
from launcher.plan.inputs import BuiltImage
from launcher.plan.request import Request, request_of
from launcher.plan.settings import AUTO, LaunchSettings, TextSetting
from launcher.slurm.site import Fact, Site

FORMAT = 3
WHAT, AGAIN = "job file", "submit the job again"


@dataclass(frozen=True)
class SubmittedImage:
    """The image that a job was submitted with; without a name the environment of the launcher.

    Attributes:
        engine: runs it.
        name: as --image takes it.
        place: SIF, or reference in the engine's storage.
        digest: recorded when it was built.
        bytes: size of the SIF at the submission, and
        mtime_ns: its modification time; a job compares them, since a digest of gigabytes takes
            minutes.
    """

    engine: str
    name: str | None = None
    place: str | None = None
    digest: str | None = None
    bytes: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True)
class JobFile:
    """The request of a job.

    Attributes:
        format: version of this schema.
        written_by: version of the launcher that wrote it.
        command: of `aam`.
        arguments: its options, with absolute paths.
        settings: those of the launcher, each with its source.
        image: what it runs in.
        site: name of the site, and
        facts: its facts.
        gpus: the submission decided for GPUs of the site: each rank needs one.
        ranks: processes of each node, one for a GPU.
        warn_seconds: how long before its time limit the job stops; 0: it does not.
        requeue: the job is queued again when its time limit stops it.
        force: run in an image that does not fit.
        tasks: further options of each task of an array.
        shards: tasks of an array, each of which computes one shard of the samples; 0: none.
    """

    format: int
    written_by: str
    command: str
    arguments: tuple[str, ...]
    settings: LaunchSettings
    image: SubmittedImage
    site: str
    facts: dict[str, Fact]
    gpus: bool
    ranks: int = 1
    warn_seconds: int = 0
    requeue: bool = False
    force: bool = False
    tasks: tuple[tuple[str, ...], ...] = ()
    shards: int = 0

    @property
    def of_site(self) -> Site:
        """The site as `launcher.slurm.site` has it."""
        return Site(self.site, self.facts)

    @property
    def chose_image(self) -> bool:
        """Whether the submission chose the image, because no setting requested one."""
        return self.image.name is not None and self.settings.image.value == AUTO.value

    def request(self, variables: Mapping[str, str]) -> Request:
        """Return the request of the job, or of the task of an array that `variables` name.

        Raises:
            DataError: the array has more tasks than the file.
            UsageError: the command line is wrong.
        """
        more: tuple[str, ...] = ()
        if self.tasks or self.shards:
            number, last = int(variables.get("SLURM_ARRAY_TASK_ID", "0")), len(self.tasks)
            if number >= (last or self.shards):
                evidence = f"task {number} of {last or self.shards}"
                raise DataError("The job file has no such task", evidence, AGAIN)
            more = self.tasks[number] if self.tasks else ("--shard", f"{number + 1}/{self.shards}")
        options = {"--force": True} if self.force else {}
        return request_of(options, [*self.command.split(), *self.arguments, *more])

    def node_settings(self, variables: Mapping[str, str]) -> LaunchSettings:
        """Return the settings of the launch on a node: image, engine and scratch are decided."""
        scratch = self.settings.scratch
        if scratch.source == "default":
            scratch = TextSetting(local_disk(self.of_site, variables), f"site {self.site}")
        return replace(
            self.settings,
            image=TextSetting(self.image.name or "auto", "submission"),
            runtime=TextSetting(self.image.engine, "submission"),
            scratch=scratch,
        )


def local_disk(site: Site, variables: Mapping[str, str]) -> str:
    """Return the folder of a node's own disk: that of the site, or where temporary files go."""
    named = string.Template(site.text("local")).safe_substitute(variables)
    places = [named, variables.get("SLURM_TMPDIR", ""), variables.get("TMPDIR", "")]
    writable = (place for place in places if os.path.isdir(place) and os.access(place, os.W_OK))
    return next(writable, "/tmp")


def submitted_image(engine: str, name: str | None, built: BuiltImage | None) -> SubmittedImage:
    """Return an image with the size and time of its file, where it is one and exists."""
    if built is None:
        return SubmittedImage(engine, name)
    image = SubmittedImage(engine, name, built.place, built.digest)
    try:
        found = os.stat(built.place)
    except OSError:  # in an engine's storage, or not built yet (--dry-run)
        return image
    return SubmittedImage(**{**asdict(image), "bytes": found.st_size,
                             "mtime_ns": found.st_mtime_ns})  # fmt: skip


def require_image(image: SubmittedImage) -> None:
    """Check that the image is there and is the submitted one.

    Raises:
        MissingInput: this node does not see it.
        DataError: it has changed.
    """
    if image.bytes is None or image.place is None:
        return
    try:
        found = os.stat(image.place)
    except OSError as error:
        evidence = f"'{image.place}', {error.strerror}"
        remedy = "put it where all nodes see it (image_dir)"
        raise MissingInput("No image", evidence, remedy) from error
    if (found.st_size, found.st_mtime_ns) != (image.bytes, image.mtime_ns):
        cause = "The image has changed since the job was submitted"
        raise DataError(cause, f"'{image.place}'", AGAIN)


def place_of(output: Path, folder: bool, part: str = "") -> Path:
    """Return the job file of an output: in a folder, or beside a file.

    Args:
        part: name of a job that follows others with the same output.
    """
    name = f"aam-job{part and '-'}{part}.json"
    return output / f".{name}" if folder else output.with_name(f".{output.name}.{name}")


def write(job: JobFile, file: Path) -> None:
    """Write a job file atomically.

    Raises:
        UsageError: a name in it is not UTF-8.
        CannotCreate: it cannot be written.
    """
    for text in (*job.arguments, *(word for task in job.tasks for word in task)):
        if not text.isascii() and any("\ud800" <= mark <= "\udfff" for mark in text):
            raise UsageError(
                "A name that no job can be given", f"{text!a} is not UTF-8", "rename it"
            )
    write_json(file, json.loads(json.dumps(asdict(job), default=str)))  # dates of YAML


def read(file: Path) -> JobFile:
    """Read a job file.

    Raises:
        MissingInput: this node does not see it.
        DataError: it is damaged, or of another version.
    """
    if not file.exists():
        evidence = f"'{file}' does not exist on {os.uname().nodename}"
        remedy = f"choose an output folder that all nodes see, or {AGAIN}"
        raise MissingInput("No job file", evidence, remedy)
    head: dict[str, Any] = read_json(file, {"format": int, "written_by": str}, WHAT, AGAIN)
    if head["format"] != FORMAT:
        evidence = f"'{file}' of aam-launch {head['written_by']}, and this is {__version__}"
        raise DataError("A job file of another version", evidence, AGAIN)
    job: JobFile = read_json(file, JobFile, WHAT, AGAIN)
    return job
