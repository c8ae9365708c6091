"""`aam simulate`: a simulated study with known effects."""

from __future__ import annotations

from aam.console import info
from aam.contract.files import refuse_existing
from aam.contract.options.commands.studies import Simulate
from aam.data.simulation.files import write_study
from aam.data.simulation.simulate import simulate


def run(options: Simulate) -> None:
    """Simulate the study and write its files.

    Raises:
        UsageError: impossible sizes.
        CannotCreate: a study exists already, or the folder cannot be written.
    """
    refuse_existing(options.output_dir / "table.biom", options.overwrite)
    study = simulate(options)
    places = write_study(study, options)
    info(
        f"{len(study.sample_ids)} samples x {len(study.sequences)} ASVs, "
        f"{study.richness.mean():.0f} ASVs and {study.reads.mean():.0f} reads a sample on average: "
        f"{', '.join(place.name for place in places)} in {options.output_dir}"
    )
