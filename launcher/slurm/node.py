"""Node of a site as a `Host`, so that plans for it are made like those for this host. Pure."""

from __future__ import annotations

from aam.contract.errors import ConfigurationError
from launcher.gpus import VENDORS
from launcher.host.facts import Driver, EngineFact, Gpu, Host
from launcher.slurm.site import Site


def node_of(site: Site, here: Host, gpus_used: int) -> Host:
    """Return a node of `site`, seen from the host where jobs are submitted, with the GPUs used.

    Its engines are those of this host: a site that has others names one (`runtime`).

    Raises:
        ConfigurationError: an unknown vendor.
    """
    vendor = site.text("vendor")
    if vendor and vendor not in VENDORS:
        remedy = f"known are {', '.join(VENDORS)}, or none for processors"
        evidence = f"'{vendor}' in {site.where('vendor')}"
        raise ConfigurationError("No such vendor", evidence, remedy)
    gpus = tuple(
        Gpu(vendor, number, site.text("arch") or None, site.text("gpu"), f"{number:04x}:00:00.0")
        for number in range(gpus_used if vendor else 0)
    )
    return Host(
        root=f"site {site.name}",
        name=f"a node of {site.title}",
        kernel="unknown",
        machine=here.machine,
        gpus=gpus,
        nodes=(),
        drivers=(Driver(vendor, None, f"site {site.name}"),) if vendor else (),
        engines=tuple(
            EngineFact(engine.name, engine.name, traits=engine.traits)
            for engine in here.engines if engine.traits.several_ranks
        ),
        absent_engines=here.absent_engines,
        slurm=None,
        user=here.user,
    )  # fmt: skip
