"""Taxonomy of ASVs, read from QIIME 2's TSV, its FeatureData[Taxonomy] artifact, or a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from aam.console import info, warn
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


def join_taxonomies(
    taxonomies: Sequence[Mapping[str, str]], id_of_asv: Sequence[Mapping[str, str]]
) -> dict[str, str]:
    """Join taxonomies: a joined ASV keeps the ranks that its ASVs have in common.

    >>> whole = {"ACGT": "d__B; g__A; s__a", "ACGA": "d__B; g__A; s__c"}
    >>> join_taxonomies([whole], [{"ACGT": "ACG", "ACGA": "ACG"}])
    {'ACG': 'd__B; g__A'}
    """
    ranks_of: dict[str, list[str]] = {}
    differing: dict[str, tuple[str, ...]] = {}  # ASV -> first ranks that differ
    for number, new_ids in enumerate(id_of_asv):
        taxa, earlier = taxonomies[number % len(taxonomies)], set(ranks_of)
        require_common(taxa, list(new_ids))
        for name, joined in new_ids.items():
            if name in taxa:
                ranks = [rank.strip() for rank in taxa[name].split(";")]
                pairs = list(zip(ranks_of.get(joined, ranks), ranks, strict=False))
                common = list(takewhile(lambda pair: pair[0] == pair[1], pairs))
                ranks_of[joined] = [rank for rank, _ in common]
                difference = next(iter(pairs[len(common) :]), ())
                both_named = len(named_ranks(";".join(difference))) == 2
                if both_named and joined in earlier and len(taxonomies) > 1:
                    differing.setdefault(joined, difference)
    if differing:
        warn(
            f"The taxonomies differ for {len(differing)} ASVs, and these keep their common ranks; "
            f"one is {' and '.join(next(iter(differing.values())))}: name all by one reference."
        )
    return {name: "; ".join(ranks) for name, ranks in ranks_of.items()}


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
