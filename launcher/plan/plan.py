"""Plan of a launch: the outcome of every decision, ready to run or to print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.findings import Decision, Finding
from launcher.host.facts import Gpu
from launcher.plan.mounts import Mount


def use_record(image_dir: str, image: str, image_format: str) -> str:
    """Return the file beside the images whose modification time is the last launch of an image."""
    return f"{image_dir}/.used.{image}.{image_format}"


@dataclass(frozen=True)
class Plan:
    """A program to execute, with its environment, mounts and devices.

    Attributes:
        engine: name of the engine.
        program: absolute path of the engine, or of the Python interpreter.
        argv: the command of `aam` and its options.
        variables: variables of `aam`, literally.
        unset: variables to remove from the environment of the program.
        image: name of the image, None for native.
        place: file or reference of the image.
        digest: of the image, where it is known.
        use_record: file whose modification time is the last launch of the image.
        mounts: mounts of the container.
        devices: device nodes in the container.
        groups: numeric groups that own devices.
        gpus: the GPUs of the launch.
        folders: private folders to make first, readable by the user alone.
        outputs: output folders to make first.
        workdir: current folder inside.
        host_libraries: the vendor whose libraries of the host the engine binds; empty: none.
        host_devices: the container sees the host's /dev, with /dev/shm, which ranks share.
        cdi: names of devices that the engine brings in by their CDI description.
        user: numeric user and group.
        terminal: standard input and output are a terminal.
        stack: vendor and version of PyTorch, for the record.
        forced: misfits that --force overrode.
    """

    engine: str
    program: str
    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    image: str | None = None
    place: str | None = None
    digest: str | None = None
    use_record: str | None = None
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    folders: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    workdir: str = "/"
    host_libraries: str = ""
    host_devices: bool = False
    cdi: tuple[str, ...] = ()
    user: tuple[int, int] = (0, 0)
    terminal: bool = False
    stack: str = ""
    forced: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    findings: tuple[Finding, ...] = ()

    def environment(self, present: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program, given the `present` one.

        A container's variables are set inside of it, so that no engine interprets them.
        """
        kept = {name: value for name, value in present.items() if name not in self.unset}
        return {**kept, **dict(self.variables)} if self.image is None else kept
