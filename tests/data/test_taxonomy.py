"""Ranks of a taxon."""

from __future__ import annotations

import pytest

from aam.data.taxonomy import named_ranks


@pytest.mark.parametrize(
    ("taxon", "named"),
    [
        ("d__Bacteria; p__Firmicutes; g__", ["d__Bacteria", "p__Firmicutes"]),
        ("Bacteria;Firmicutes;", ["Bacteria", "Firmicutes"]),
        ("d__Bacteria; g__; s__Bacteroides_A", ["d__Bacteria", "s__Bacteroides_A"]),
        ("", []),
    ],
)
def test_a_rank_without_a_name_is_left_out(taxon: str, named: list[str]) -> None:
    assert named_ranks(taxon) == named
