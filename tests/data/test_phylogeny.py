"""Phylogenies: shearing, cache of large trees, refusal of trees without UniFrac."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skbio import TreeNode

from aam.contract.errors import DataError
from aam.data.phylogeny import CACHED_FROM_TIPS, Phylogeny, read_phylogeny
from tests.support.trees import newicks, random_case


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "aam"


def of(text: str, features: Sequence[str], drop_missing: bool = False) -> Phylogeny:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tree.nwk"
        path.write_text(text)
        return read_phylogeny(path, features, drop_missing)[0]


def lists(phylogeny: Phylogeny) -> list[list[float]]:
    """The branch lengths from each feature to the root."""
    ends = phylogeny.indptr[1:-1]
    return [part.tolist() for part in np.split(phylogeny.lengths_G[phylogeny.indices], ends)]


def refusal(text: str, features: Sequence[str] = ("a", "b")) -> str:
    with pytest.raises(DataError) as caught:
        of(text, features)
    return str(caught.value)


def test_shearing_adds_up_chains_and_keeps_the_stem() -> None:
    assert lists(of("((a:1,b:2):4,c:8);", ["c", "b", "a"])) == [[8], [2, 4], [1, 4]]
    assert lists(of("((a:1,b:2):4,c:8);", ["b"])) == [[6]]
    assert lists(of("((a:1,b:0):0,c:8);", ["b"])) == [[0]]
    assert lists(of("(((a:1,b:2):4,c:8):16,d:32);", ["a", "c"])) == [[5, 16], [8, 16]]
    assert lists(of("(((a:1,b:2):4,c:8):16,d:32);", ["a", "b"])) == [[1, 20], [2, 20]]
    assert lists(of("(((a:1,b:2):4,c:8):16,d:32);", ["d", "c"])) == [[32], [24]]


@settings(deadline=None)
@given(newicks(most_tips=12), st.data())
def test_path_lengths_equal_those_of_scikit_bio(
    drawn: tuple[str, list[str]], data: st.DataObject
) -> None:
    text, tips = drawn
    features = data.draw(st.permutations(tips))[: data.draw(st.integers(1, len(tips)))]
    phylogeny = of(text, features)
    tree = TreeNode.read(io.StringIO(text), convert_underscores=False)
    paths = [[tree.find(name), *tree.find(name).ancestors()] for name in features]
    expected = [sum(node.length or 0 for node in path) for path in paths]
    found = lists(phylogeny)
    np.testing.assert_allclose([sum(path) for path in found], expected, atol=1e-12)
    # Binary or not, chains are collapsed: at most F tips, F - 1 inner branches and a stem.
    assert phylogeny.lengths_G.size <= 2 * len(features)
    together = {node for path in paths for node in path}
    total = sum(node.length or 0 for node in together)
    np.testing.assert_allclose(phylogeny.lengths_G.sum(), total, atol=1e-12)
    # The promises that UniFrac of a batch stands on: postorder, tip branches in tree order.
    for start, end in zip(phylogeny.indptr, phylogeny.indptr[1:], strict=False):
        assert (np.diff(phylogeny.indices[start:end]) > 0).all()
    order = np.argsort(phylogeny.indices[phylogeny.indptr[:-1]])
    assert [features[column] for column in order] == tips_of(tree, features)


def tips_of(tree: TreeNode, features: Sequence[str]) -> list[str]:
    return [tip.name for tip in tree.tips() if tip.name in features]


def test_missing_features_are_refused_or_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tree.nwk"
    path.write_text("((a:1,b:2):4,c:8);")
    features = ["x1", "c", "x2", "a"]
    with pytest.raises(DataError) as caught:
        read_phylogeny(path, features)
    assert "2 (x1, x2) of 4 are absent" in str(caught.value)
    assert "--drop-missing-asvs" in str(caught.value)
    phylogeny, columns = read_phylogeny(path, features, drop_missing=True)
    assert columns.tolist() == [1, 3]
    assert lists(phylogeny) == [[8], [5]]
    assert "2 (x1, x2) of 4" in capsys.readouterr().err


def test_a_negative_length_of_the_root_is_refused() -> None:
    assert "The tree has branches with a negative length" in refusal("(a:1,b:2):-4;")


@pytest.mark.parametrize("text", ["((a:0,b:0.0):0,c:0);", "((a:0,b:0):0,c:8);"])
def test_lengths_of_zero_alone_are_refused(text: str) -> None:
    assert "The tree has no branch lengths: all lengths above the 2 ASVs are 0" in refusal(text)


def test_branches_without_features_are_not_checked() -> None:
    assert lists(of("((a:1,b:2):4,(x:-1,x):-8);", ["a", "b"])) == [[1, 4], [2, 4]]


def test_a_root_of_three_branches_is_refused_or_put_at_the_midpoint(tmp_path: Path) -> None:
    text = "(a:1,(b:2,d_d:1):1,c:8);"
    assert "The tree is not rooted: the root of" in refusal(text, ["a", "b"])
    path = tmp_path / "tree.nwk"
    path.write_text(text)
    phylogeny, _ = read_phylogeny(path, ["a", "b", "c", "d_d"], root_at_midpoint=True)
    # The path from b to c is 11 long, so 5.5 from either.
    assert [sum(lengths) for lengths in lists(phylogeny)] == pytest.approx([3.5, 5.5, 5.5, 4.5])
    path.write_text("(a,b,c);")
    with pytest.raises(DataError, match="cannot be rooted|no branch lengths"):
        read_phylogeny(path, ["a", "b"], root_at_midpoint=True)


@pytest.mark.parametrize(
    ("length", "message"),
    [("1e37", "too large: the branches above the ASVs add up to 3e+37"), ("1e308", "too large"),
     ("1e-40", "too small")],
)  # fmt: skip
def test_lengths_out_of_range_are_refused(length: str, message: str) -> None:
    assert message in refusal(f"(a:{length},(b:{length},c:{length}):{length});", ["a", "b"])


def test_a_deep_tree_of_many_ancestors_is_refused(tmp_path: Path) -> None:
    """A tree of 40,000 nested brackets has 10^9 pairs of a feature and a branch above it."""
    tips, path = 40_000, tmp_path / "tree.nwk"
    closed = "".join(f",t{tip}:1):1" for tip in range(1, tips))
    path.write_text("(" * (tips - 1) + "t0:1" + closed.removesuffix(":1") + ";")
    with pytest.raises(DataError, match="The tree does not fit in memory"):
        read_phylogeny(path, [f"t{tip}" for tip in range(tips)], max_bytes=1 << 30)


@pytest.fixture(scope="module")
def big() -> str:
    return random_case(CACHED_FROM_TIPS + 2, 1, 1, seed=1).newick


def test_a_large_tree_is_cached(big: str, cache: Path) -> None:
    of("((a:1,b:2):4,c:8);", ["a"])
    assert not cache.exists()
    features = [f"t{n}" for n in range(0, 1000, 7)]
    first = of(big, features)
    files = list(cache.iterdir())
    assert len(files) == 1
    again = of(big, features)
    for name in ("lengths_G", "indptr", "indices"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert lists(of(big, features[::-1])) == lists(first)[::-1]
    assert len(list(cache.iterdir())) == 2


def test_a_damaged_cache_is_replaced(big: str, cache: Path) -> None:
    first = of(big, ["t1", "t2"])
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    for damage in (b"", b"PK\x03\x04", whole[: len(whole) // 2]):
        file.write_bytes(damage)
        assert lists(of(big, ["t1", "t2"])) == lists(first)
        assert file.read_bytes()[:2] == b"PK"


def test_a_cache_that_cannot_be_written_is_ignored(
    big: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(lists(of(big, ["t1", "t2"]))) == 2
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert len(lists(of(big, ["t1", "t2"]))) == 2
    assert capsys.readouterr().err == ""
    assert os.listdir(tmp_path) == ["file"]
