"""Taxonomy of ASVs, read from QIIME 2's TSV, its FeatureData[Taxonomy] artifact, or a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.console import info
from aam.contract.errors import DataError, first_few
from aam.contract.files import require
from aam.data.formats import artifact
from aam.data.formats.text import decoded, lines_of
from aam.data.store import Store, is_store

_ID_HEADERS = ("feature id", "feature-id", "#otu id", "#otuid")


def named_ranks(taxon: str) -> list[str]:
    """Return the named ranks of a taxon, the highest first; `g__` alone has no name.

    >>> named_ranks("d__Bacteria; p__Firmicutes; g__"), named_ranks("Bacteria;Firmicutes;")
    (['d__Bacteria', 'p__Firmicutes'], ['Bacteria', 'Firmicutes'])
    >>> named_ranks("d__Bacteria; g__; s__Bacteroides_A"), named_ranks("")
    (['d__Bacteria', 's__Bacteroides_A'], [])
    """
    ranks = (rank.strip() for rank in taxon.split(";"))
    return [rank for rank in ranks if rank and not rank.endswith("__")]


def read_taxonomy(path: Path) -> dict[str, str]:
    """Read the taxon of each ASV, by feature id."""
    if is_store(path):
        return Store(path).taxa()
    data = artifact.read_payload(require(path, "taxonomy"), "taxonomy.tsv", "FeatureData[Taxonomy")
    lines = lines_of(decoded(data, path, "taxonomy"))
    header = [name.strip().lower() for name in lines[0].split("\t")] if lines else []
    if not header or header[0] not in _ID_HEADERS or "taxon" not in header:
        start = f"begins with '{lines[0][:60]}'" if lines else "is empty"
        raise DataError(
            "Not a taxonomy",
            f"'{path}' {start}",
            "give a TSV with the columns Feature ID and Taxon",
        )
    column, taxa, twice = header.index("taxon"), dict[str, str](), []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip() or line.startswith("#q2:"):
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) <= column:
            raise DataError(
                "A line of the taxonomy has no taxon", f"'{path}', line {number}", "complete it"
            )
        if cells[0] in taxa:
            twice.append(cells[0])
        taxa[cells[0]] = cells[column]
    if twice:
        raise DataError(
            "ASVs have two taxa", f"'{path}', {first_few(twice)}", "keep one line for each ASV"
        )
    return taxa


def taxon_cells(taxa: Mapping[str, str], feature_ids: Sequence[str]) -> list[str]:
    """Return the taxon of each ASV, "" if it has none; print how many have none."""
    if unmatched := sum(name not in taxa for name in feature_ids):
        info(f"{unmatched} of {len(feature_ids)} ASVs are not in the taxonomy.")
    return [taxa.get(name, "") for name in feature_ids]


def require_common(taxa: Mapping[str, str], feature_ids: Sequence[str]) -> None:
    """Check that a taxonomy has an ASV of a table."""
    if not any(name in taxa for name in feature_ids):
        raise DataError(
            "The taxonomy and the table have no ASV in common",
            f"the table has {feature_ids[0]}, the taxonomy {next(iter(taxa), 'no ASV')}",
            "give the taxonomy of the same representative sequences",
        )
