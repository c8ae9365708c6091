"""Settings of a job on a node, from its script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aam.node.commands import NodeCommand

SHARED_RUN = Path("/mnt/run")
"""Where the image sees the run folder that the user named, while `aam` works on a local one."""


@dataclass(frozen=True)
class Settings:
    """Settings of a job, from its script.

    Attributes:
        node_folder: this job's folder on the node's disk, as this process sees it.
        host_folder: the same folder, as the host sees it.
        directory: the folder in which the job was submitted.
        native: there is no image, so nothing can be mounted and nothing is staged.
        ranks: ranks of each node.
        vendor: whose GPUs the ranks use, or "".
        whole_nodes: the job has its nodes for itself.
        stage_gb: most GB that are staged; 0: inputs and the run folder stay where they are.
        sync_seconds: how often the run folder is copied.
        sync_patience: seconds that a full disk is given at the end.
        warn_seconds: how long before its time limit the job stops; 0: it does not.
        requeue: the job is queued again when its time limit stops it.
        end: when the time limit is, in seconds since 1970; 0 or past: unknown.
        interfaces: patterns of fast network interfaces.
        plugin: folders of network plugins.
        variables: NAME=VALUE for jobs of several nodes.
        mounts: what the image sees in the other steps, as values of --mount.
    """

    node_folder: Path
    host_folder: Path
    directory: Path
    native: bool = False
    ranks: int = 1
    vendor: str = ""
    whole_nodes: bool = False
    stage_gb: float = 0
    sync_seconds: float = 10
    sync_patience: float = 300
    warn_seconds: float = 0
    requeue: bool = False
    end: float = 0
    interfaces: tuple[str, ...] = ()
    plugin: tuple[Path, ...] = ()
    variables: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()

    @property
    def stop_file(self) -> Path:
        """The file of the stop request; it is on the first node, which has rank 0."""
        return self.node_folder / "stop"

    @property
    def local_run(self) -> Path:
        """The run folder on the node's disk."""
        return self.node_folder / "run"

    def staged(self, number: int) -> Path:
        """Return the copy of an input on the node's disk."""
        return self.node_folder / "staged" / str(number)

    def is_local(self, command: NodeCommand) -> bool:
        """Whether the run folder is on the node's disk while the job runs."""
        has_copy = command.run_folder is not None and not command.in_place
        return has_copy and self.stage_gb > 0 and not self.native

    def shared_run(self, command: NodeCommand) -> Path | None:
        """Return the run folder that all nodes see, as the step `run` sees it."""
        return SHARED_RUN if self.is_local(command) else command.run_folder
