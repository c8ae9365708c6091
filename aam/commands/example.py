"""`aam example`: a simulated study with known effects, for the tutorial and for tests."""

from __future__ import annotations

from aam.console import info
from aam.contract.options.commands.studies import Example
from aam.data.simulation import require_free, simulate, write_study


def run(options: Example) -> None:
    """Simulate the study and write all of its files, or none."""
    require_free(options)
    study = simulate(options)
    places = write_study(study, options)
    info(
        f"Simulated study: {len(study.sample_ids)} samples x {len(study.sequences)} ASVs, "
        f"{study.richness.mean():.0f} ASVs and {study.reads.mean():.0f} reads a sample on average: "
        f"{', '.join(place.name for place in places)} in {options.output_dir}"
    )
    table, metadata = options.output_dir / "table.biom", options.output_dir / "metadata.tsv"
    info(f"Next: aam inspect {table} --metadata {metadata} --metadata-column ph")
