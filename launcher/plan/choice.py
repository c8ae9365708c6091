"""Choice of GPUs, image and engine; built images and the native stack it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aam.contract.installation import install_command
from launcher.findings import Finding
from launcher.host.facts import Gpu
from launcher.plan.catalog import Image
from launcher.plan.decision import Decision
from launcher.plan.visible_devices import DeviceSelection

NATIVE = "native"


@dataclass(frozen=True)
class BuiltImage:
    """A built image: a file, or a reference to an engine's own storage.

    Attributes:
        image: its name.
        engines: those that can run it there.
        place: the file, the id or the reference.
        digest: "sha256:..." as it was recorded when it was built; of a SIF without a record
            "sif:...", the id that the build gave it.
        labels: what was measured in it then.
        mismatch: difference from its record and the remedy; such an image is refused.
    """

    image: str
    engines: tuple[str, ...]
    place: str
    digest: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    mismatch: tuple[str, str] | None = None


@dataclass(frozen=True)
class NativeStack:
    """The environment that the launcher runs in, as a stack.

    Attributes:
        python: absolute path of its interpreter.
        absent: libraries of the model that it lacks.
        in_user_site: `aam` itself is installed in the user's site folder.
        torch: version of PyTorch ("2.13.0+cpu"), or None.
        vendor: whose GPUs that PyTorch can use: a name of `launcher.gpus.VENDORS`, or "cpu".
    """

    python: str
    absent: tuple[str, ...]
    in_user_site: bool
    torch: str | None
    vendor: str

    @property
    def install(self) -> str:
        """The command that installs those libraries, for messages."""
        return install_command(python=self.python)


@dataclass(frozen=True)
class Choice:
    """The chosen GPUs, image and engine of a launch.

    Attributes:
        engine: its name.
        image: None for native.
        built: the image's place; None for native, or if it is not built (explanations only).
        gpus: the GPUs of one group that are used; empty on a processor.
        selection: the visible devices of their vendor, or None.
        forced: problems that --force overrode.
    """

    engine: str
    image: Image | None
    built: BuiltImage | None
    gpus: tuple[Gpu, ...]
    selection: DeviceSelection | None
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    forced: tuple[str, ...] = ()
