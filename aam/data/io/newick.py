"""Newick parser for trees of millions of tips, from text to arrays.

The parser is vectorized: it finds all structural characters at once and numbers the nodes in the
order in which the text closes them, which is a postorder. In a postorder
    the parent of a node of depth d    is the next node of depth d - 1,
    the nodes below an internal node   come immediately before it,
so sorting gives parents and subtrees, without recursion or a stack.

Labels in single quotes ('' is a quote), comments in square brackets (nested too), blanks and line
ends are read. Underscores stay underscores, so names are those of the table. Names of internal
nodes are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aam.contract.errors import DataError

_OPEN, _COMMA, _CLOSE, _END, _COLON = 1, 2, 3, 4, 5
_CODES = np.zeros(256, dtype=np.uint8)
for _character, _code in zip(b"(,);:", (_OPEN, _COMMA, _CLOSE, _END, _COLON), strict=True):
    _CODES[_character] = _code
_SPECIAL = re.compile(rb"'|\[")
_QUOTED = re.compile(rb"'(?:[^']|'')*'")
_BRACKET = re.compile(rb"[\[\]]")


@dataclass(frozen=True)
class NewickTree:
    """A rooted tree of n nodes in postorder: children before parents, the root last.

    Attributes:
        parents: int64 [n], index of the parent; -1 for the root.
        starts: int64 [n], the nodes `starts[i]` to `i` are the subtree of node i.
        lengths: float64 [n], length of the branch above each node; NaN where the text has none.
        tips: int64 [t], the nodes without children, in the order of the text.
        names: names of the tips, "" where the text has none.
    """

    parents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.float64]
    tips: NDArray[np.int64]
    names: list[str]


def parse(text: bytes, source: str) -> NewickTree:
    """Parse one rooted tree.

    Args:
        text: Newick in UTF-8, with or without the final semicolon.
        source: name of the text in messages.

    Raises:
        DataError: the text is empty or not a Newick tree; the message gives the character.
    """
    text = text.removeprefix(b"\xef\xbb\xbf")
    if not text.strip():
        raise DataError("The tree is empty", source, "give a Newick file with the ASVs as tips")
    text, skeleton = _without_quotes_and_comments(text, source)
    codes = _CODES[np.frombuffer(skeleton, dtype=np.uint8)]
    positions = np.flatnonzero((codes != 0) & (codes != _COLON))
    codes = codes[positions]
    positions, codes = _cut_at_semicolon(skeleton, positions, codes, source)
    _check_order(skeleton, positions, codes, source)

    # A node is the text after a ")" (internal) or after a "(", a "," or the beginning (tip),
    # unless a "(" follows.
    before = np.concatenate(([_OPEN], codes[:-1]))
    is_node = codes != _OPEN
    is_tip = (before != _CLOSE)[is_node]
    text_starts = np.concatenate(([-1], positions[:-1]))[is_node] + 1
    text_ends = positions[is_node]
    steps = (before == _OPEN).astype(np.int64) - (before == _CLOSE)
    steps[0] = 0
    depths = np.cumsum(steps)[is_node]
    parents = _parents(depths)
    if np.count_nonzero(parents < 0) != 1:
        raise _newick_error("a comma outside all brackets", int(text_ends[parents < 0][0]), source)
    names, lengths = _labels(text, skeleton, text_starts, text_ends, is_tip, source)
    starts = _starts(codes, is_node, is_tip)
    return NewickTree(parents, starts, lengths, np.flatnonzero(is_tip), names)


def _without_quotes_and_comments(text: bytes, source: str) -> tuple[bytes, bytes]:
    """Blank the comments; also return a copy where quoted labels are only the letter q.

    Both keep their length, so that positions stay valid.
    """
    if not _SPECIAL.search(text):
        return text, text
    plain, skeleton = bytearray(text), bytearray(text)
    place = 0
    while found := _SPECIAL.search(text, place):
        start = found.start()
        if found.group() == b"'":
            quoted = _QUOTED.match(text, start)
            if quoted is None:
                raise _newick_error("a quote that is not closed", start, source)
            before = start - 1
            while before >= 0 and skeleton[before] in b" \t\r\n":
                before -= 1
            if before >= 0 and skeleton[before] not in b"(,)":
                raise _newick_error("a quote inside a name", start, source)
            place = quoted.end()
            skeleton[start:place] = b"q" * (place - start)
        else:
            place = _comment_end(text, start, source)
            plain[start:place] = skeleton[start:place] = b" " * (place - start)
    return bytes(plain), bytes(skeleton)


def _comment_end(text: bytes, start: int, source: str) -> int:
    depth, place = 1, start + 1
    while depth:
        found = _BRACKET.search(text, place)
        if found is None:
            raise _newick_error("a comment that is not closed", start, source)
        depth += 1 if found.group() == b"[" else -1
        place = found.end()
    return place


def _cut_at_semicolon(
    skeleton: bytes, positions: NDArray[np.int64], codes: NDArray[np.uint8], source: str
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Cut after the semicolon, or append one to a text without."""
    ends = np.flatnonzero(codes == _END)
    if ends.size == 0:
        return np.append(positions, len(skeleton)), np.append(codes, np.uint8(_END))
    stop = int(positions[ends[0]])
    rest = skeleton[stop + 1 :]
    if rest.strip():
        where = stop + 1 + len(rest) - len(rest.lstrip())
        raise _newick_error("text after the semicolon (a second tree?)", where, source)
    return positions[: ends[0] + 1], codes[: ends[0] + 1]


def _check_order(
    skeleton: bytes, positions: NDArray[np.int64], codes: NDArray[np.uint8], source: str
) -> None:
    """Refuse unmatched brackets and text that may not be next to them."""
    depths = np.cumsum((codes == _OPEN).astype(np.int64) - (codes == _CLOSE))
    if (below := np.flatnonzero(depths < 0)).size:
        raise _newick_error("a ')' without its '('", int(positions[below[0]]), source)
    if depths[-1]:
        # The last position after which the depth stays above zero is the open bracket.
        low = np.minimum.accumulate(depths[::-1])[::-1]
        first = int(np.flatnonzero((codes == _OPEN) & (low == depths))[0])
        missing = f"{int(depths[-1])} '(' not closed (is the file whole?), the first"
        raise _newick_error(missing, int(positions[first]), source)
    if codes.size == 1 and not skeleton.strip(b"; \t\r\n"):
        raise DataError("The tree is empty", source, "give a Newick file with the ASVs as tips")
    wrong = np.flatnonzero((codes[1:] == _OPEN) & (codes[:-1] == _CLOSE))
    if wrong.size:
        raise _newick_error("a '(' after a ')'", int(positions[wrong[0] + 1]), source)
    # Only blanks may precede a "("; the loop runs over the few with any text before them.
    opens = np.flatnonzero(codes == _OPEN)
    starts, ends = np.where(opens > 0, positions[opens - 1], -1) + 1, positions[opens]
    has_text = starts < ends
    for start, end in zip(starts[has_text].tolist(), ends[has_text].tolist(), strict=True):
        if skeleton[start:end].strip():
            raise _newick_error("a name before a '('", start, source)


def _parents(depths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find for each node, in postorder, the next node that is one step nearer to the root."""
    count = depths.size
    order = np.argsort(depths, kind="stable")
    keys = depths[order] * count + order
    parent_keys = (depths - 1) * count + np.arange(count)
    parents = np.full(count, -1, dtype=np.int64)
    inner = depths > 0
    parents[inner] = order[np.searchsorted(keys, parent_keys[inner])]
    return parents


def _starts(
    codes: NDArray[np.uint8], is_node: NDArray[np.bool_], is_tip: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Find the first node of each subtree: the one after its opening bracket."""
    depths = np.cumsum((codes == _OPEN).astype(np.int64) - (codes == _CLOSE))
    nodes_before: NDArray[np.int64] = np.cumsum(is_node) - is_node
    opens, closes = np.flatnonzero(codes == _OPEN), np.flatnonzero(codes == _CLOSE)
    # Brackets of one depth open and close alternately.
    opens = opens[np.argsort(depths[opens], kind="stable")]
    closed_order = np.argsort(depths[closes] + 1, kind="stable")
    starts = np.arange(is_tip.size)
    inner = np.flatnonzero(~is_tip)
    starts[inner[closed_order]] = nodes_before[opens]
    return starts


def _labels(
    text: bytes,
    skeleton: bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    is_tip: NDArray[np.bool_],
    source: str,
) -> tuple[list[str], NDArray[np.float64]]:
    """Parse the names of the tips and the branch lengths of all nodes."""
    colons = np.flatnonzero(np.frombuffer(skeleton, dtype=np.uint8) == ord(":"))
    at = np.searchsorted(colons, starts)
    colons_of_node = np.searchsorted(colons, ends) - at
    if colons_of_node.size and colons_of_node.max() > 1:
        node = int(np.argmax(colons_of_node > 1))
        raise _newick_error("two lengths for one branch", int(colons[at[node] + 1]), source)
    has_length = colons_of_node == 1
    middles = ends.copy()
    middles[has_length] = colons[at[has_length]]

    names = []
    tip_spans = zip(starts[is_tip].tolist(), middles[is_tip].tolist(), strict=True)
    for start, end in tip_spans:
        name = text[start:end].strip()
        if name[:1] == b"'":
            if not _QUOTED.fullmatch(name):
                raise _newick_error("text after a closing quote", start, source)
            name = name[1:-1].replace(b"''", b"'")
        names.append(name.decode("utf-8", "replace"))

    lengths = np.full(starts.size, np.nan)
    spans = zip((middles[has_length] + 1).tolist(), ends[has_length].tolist(), strict=True)
    lengths[has_length] = [_length(text, start, end, source) for start, end in spans]
    return names, lengths


def _length(text: bytes, start: int, end: int, source: str) -> float:
    digits = text[start:end]
    try:
        value = float(digits)
    except ValueError:
        value = np.nan
    # float() accepts "1_000" and "nan", which are not valid branch lengths.
    if not np.isfinite(value) or b"_" in digits:
        shown = digits.decode("utf-8", "replace").strip()[:40]
        raise _newick_error(f"a branch length that is not a number, '{shown}'", start, source)
    return value


def _newick_error(what: str, place: int, source: str) -> DataError:
    return DataError(
        "The tree cannot be read as Newick",
        f"{what} at character {place + 1} of {source}",
        "export the tree again as Newick",
    )
