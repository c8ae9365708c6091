"""Table of a host's facts for a terminal; the partitions of a card share a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.check_reports import StoredReport
from launcher.gpus import VENDORS
from launcher.host.facts import DeviceNode, Driver, Gpu, Host
from launcher.plan.catalog import Catalog

SHOWN = 4  # members of a list; of a longer one the first and the last


def host_lines(host: Host, catalog: Catalog) -> Iterator[str]:
    """Yield the facts of a host, a subject and its value on each line."""
    yield _line("host", f"{host.name}, Linux {host.kernel}, {host.machine}")
    if host.user:
        groups = ", ".join(map(str, dict.fromkeys((host.user.gid, *host.user.groups))))
        yield _line("user", f"number {host.user.uid}, in groups {groups}")
    if host.slurm:
        gpus = host.slurm.gpus
        listed = f", GPUs {','.join(map(str, gpus))} of the node" if gpus else ""
        yield _line("Slurm", f"job {host.slurm.job}, {host.slurm.tasks} tasks{listed}")
    for driver in host.drivers:
        yield _line("driver", _driver(driver, catalog))
    for place in host.user_space.values():
        yield _line("libraries", f"{place}, which images do not see")
    cards: dict[str, list[Gpu]] = {}
    for number, gpu in enumerate(host.gpus):
        cards.setdefault(gpu.card or str(number), []).append(gpu)
    for card, parts in cards.items():
        yield _line("GPU", _card(card, parts))
    alike: dict[object, list[DeviceNode]] = {}
    for node in host.nodes:
        alike.setdefault((node.gid, node.mode, node.access), []).append(node)
    for nodes in alike.values():
        yield _line("device", _owners(nodes))
    for engine in host.engines:
        version = f" {engine.version}" if engine.version else ""
        obstacle = f": {engine.obstacle}" if engine.obstacle else ""
        yield _line("engine", f"{engine.path}{version}{obstacle}")


def report_lines(host: Host, reports: Sequence[StoredReport]) -> Iterator[str]:
    """Yield the check reports of a host's GPUs, the most recent first."""
    for report in reports:
        yield _line("aam check", f"{report.verdict}; {report.made}, {report.stack}")
    if host.gpus and not reports:
        yield _line("aam check", "not yet measured; the first run on a GPU does that")


def shortened(members: Sequence[str]) -> str:
    """Name `members`: all of a few, else the first, the last, and how many.

    >>> shortened([str(n) for n in range(9)])
    '0 ... 8 (9)'
    """
    if len(members) <= SHOWN:
        return ", ".join(members)
    return f"{members[0]} ... {members[-1]} ({len(members)})"


def _line(subject: str, value: str) -> str:
    return f"{subject:<10} {value}"


def _driver(driver: Driver, catalog: Catalog) -> str:
    ranges = catalog.drivers.get(driver.vendor, ())
    known = VENDORS[driver.vendor].driver_text(driver, ranges)
    source = "" if driver.version else f" ({driver.source})"
    return f"{driver.vendor}, {known}{source}"


def _card(card: str, parts: Sequence[Gpu]) -> str:
    first = parts[0]
    place = first.pci if len(parts) == 1 else card
    fields = [f"{first.product} ({first.arch or 'arch unknown'}) at {place or 'an unknown place'}"]
    if len(parts) > 1:
        fields.append(f"{len(parts)} partitions")
    if first.mode and not first.instances:
        fields.append(f"{first.mode} {first.memory_mode or ''}".rstrip())
    nodes = [path for gpu in parts for path in gpu.nodes]
    if nodes:
        fields.append(shortened(nodes))
    if first.integrated:
        fields.append("integrated")
    if not all(gpu.readable for gpu in parts):
        fields.append("of another job")
    if not first.driven:
        fields.append("no driver")
    if first.instances:
        names = [part.place for part in first.instances]
        fields.append(f"{VENDORS[first.vendor].instance.rstrip('-')} {shortened(names)}")
    return ", ".join(fields)


def _owners(nodes: Sequence[DeviceNode]) -> str:
    first = nodes[0]
    paths = shortened([node.path for node in nodes])
    if first.mode is None:
        return f"{paths}: owner unknown"
    group = f"group {first.group or '?'} ({first.gid}), mode {first.mode:o}"
    access = {True: ", yours to use", False: ", not yours to use", None: ""}[first.access]
    return f"{paths}: {group}{access}"
