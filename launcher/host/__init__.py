"""Find out: what a host has, read below a root from sysfs, procfs and the process's environment.

No vendor tool, no subprocess, no import of anything heavy. Because everything is read below a root,
the captured tree of another host is read the same way.
"""

from launcher.host.detect import detect
from launcher.host.facts import Driver, EngineFact, Gpu, Host, Node, Slurm, User

__all__ = ["Driver", "EngineFact", "Gpu", "Host", "Node", "Slurm", "User", "detect"]
