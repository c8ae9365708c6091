"""Newick parser: accepted text, meaning of the arrays, positions of errors."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skbio import TreeNode

from aam.contract.errors import DataError
from aam.data.formats.newick import NewickTree, parse
from tests.support.trees import newicks


def read(text: str) -> NewickTree:
    return parse(text.encode(), "'a.nwk'")


@settings(deadline=None)
@given(newicks(most_tips=14), st.sampled_from(["", " ", "\n", "[a (comment):1, [nested]']"]))
def test_any_tree_is_read_as_scikit_bio_reads_it(drawn: tuple[str, list[str]], gap: str) -> None:
    text, _ = drawn
    expected = list(TreeNode.read(io.StringIO(text), convert_underscores=False).postorder())
    tree = read(text.replace("(", f"({gap}").replace(",", f"{gap},").replace(")", f"){gap}"))
    lengths = [np.nan if node.length is None else node.length for node in expected]
    np.testing.assert_array_equal(tree.lengths, lengths)
    assert tree.names == [node.name for node in expected if node.is_tip()]
    places = {id(node): place for place, node in enumerate(expected)}
    parents = [-1 if node.parent is None else places[id(node.parent)] for node in expected]
    assert tree.parents.tolist() == parents
    sizes = [node.count() for node in expected]
    assert (np.arange(len(sizes)) - tree.starts + 1).tolist() == sizes


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("a_b", "a_b"),
        ("'a_b'", "a_b"),
        ("'it''s'", "it's"),
        ("'a (b), c:1; [d]'", "a (b), c:1; [d]"),
        (" 10317.000001020 ", "10317.000001020"),
        ("\n'  x'\n", "  x"),
        ("é", "é"),
        ("", ""),
    ],
)
def test_names_are_unquoted_and_stripped(label: str, name: str) -> None:
    tree = read(f"({label}:1,{label}:2e-3);")
    assert tree.names == [name, name]
    assert tree.lengths[:2].tolist() == [1, 0.002]


@pytest.mark.parametrize("text", ["a;", "(a,b)", "\ufeff[&R] (a:1, b:1) ;\n\n", "(a,b)[end]; [x]"])
def test_unusual_valid_newick_is_read(text: str) -> None:
    assert read(text).names[0] == "a"


def test_a_comb_as_deep_as_it_has_tips() -> None:
    tips = 20_000
    tree = read("(" * tips + "t0:1" + "".join(f",t{n}:1):1" for n in range(1, tips + 1)) + ";")
    assert tree.names[-1] == f"t{tips}"
    assert tree.starts[tree.parents == -1].tolist() == [0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "((a,b),c;",
            "1 '(' not closed (is the file complete?), the first at character 1 of",
        ),
        ("(a,b));", "a ')' without its '(' at character 6"),
        ("(a,b);(c,d);", "text after the semicolon (a second tree?) at character 7"),
        ("a,b;", "a comma outside all brackets at character 2"),
        ("(a,b)(c,d);", "a '(' after a ')' at character 6"),
        ("(a,x(b,c));", "a name before a '(' at character 4"),
        ("(a:1:2,b);", "two lengths for one branch at character 5"),
        ("(a:one,b);", "a branch length that is not a number, 'one' at character 4"),
        ("(a:1_0,b);", "a branch length that is not a number, '1_0'"),
        ("(a:,b);", "a branch length that is not a number, ''"),
        ("('a,b);", "a quote that is not closed at character 2"),
        ("(a'b',c);", "a quote inside a name at character 3"),
        ("('a'b,c);", "text after a closing quote at character 2"),
        ("('a' 'b',c);", "text after a closing quote at character 2"),
        ("(a[b,c);", "a comment that is not closed at character 3"),
    ],
)
def test_invalid_newick_is_refused_with_its_position(text: str, what: str) -> None:
    with pytest.raises(DataError) as caught:
        read(text)
    assert what in str(caught.value)
    assert str(caught.value).startswith("The tree cannot be read as Newick: ")


@pytest.mark.parametrize(
    "text",
    ["((a:0,5,b:1,25):0,125,c:3,75);", "((a:0,5,b:1):0,2,c:1,5e-05):0,1;", "(a: -0,5 , b:0,1 );"],
)
def test_decimal_commas_are_named(text: str) -> None:
    with pytest.raises(DataError, match=r"decimal commas.*the first is '(-?0,5|0,125)'"):
        read(text)


@pytest.mark.parametrize("text", ["(1:0,2:5,(3:1,4:2):0);", "(a:0,5,(b:1,c:1):1);"])
def test_tips_with_numbers_for_names_are_no_decimal_commas(text: str) -> None:
    assert len(read(text).names) > 2


@pytest.mark.parametrize("text", ["", "[nothing];"])
def test_an_empty_text_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="The tree is empty"):
        read(text)
    with pytest.raises(DataError, match="The tree is NEXUS, not Newick"):
        read("#NEXUS\nbegin trees;\ntree a = (b,c);\nend;\n")


@given(st.text("()',:;[]ab1 ", max_size=24))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        tree = read(text)
    except DataError:
        return
    assert len(tree.parents) == len(tree.lengths) == len(tree.starts)
    assert (tree.parents[:-1] > np.arange(len(tree.parents) - 1)).all()
