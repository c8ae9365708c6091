"""Simulation of a phylogeny of ASVs, of DNA and of inherited traits along it.

Nodes are numbered so that a parent comes before its children; node 0 is the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KAPPA = 3.0  # rate of transitions over that of transversions
HEIGHT = 0.4  # mean substitutions per site from the root to a tip
CLOCK_SHAPE = 4.0  # gamma shape of branch rates, mean 1: a relaxed clock
SITE_SHAPE = 0.6  # gamma shape of site rates, mean 1: most sites are conserved, as in 16S

_LETTERS = np.frombuffer(b"ACGT", dtype=np.uint8)
_TRANSITION = 2  # A=0, C=1, G=2, T=3: XOR with 2 is a transition, with 1 or 3 a transversion


@dataclass(frozen=True)
class SimulatedTree:
    """A rooted binary tree.

    Attributes:
        parents: int64 [2F - 1], the parent of each node; -1 for the root.
        lengths: float64 [2F - 1], substitutions per site above each node; 0 for the root.
        tips: int64 [F], the nodes without children.
    """

    parents: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.float64]
    tips: npt.NDArray[np.int64]


def yule_tree(tips: int, rng: np.random.Generator) -> SimulatedTree:
    """Simulate a pure-birth (Yule) tree with `tips` (2 or more) tips, on a relaxed clock."""
    parents, born = [-1, 0, 0], [0.0, 0.0, 0.0]
    ended: dict[int, float] = {0: 0.0}
    alive = [1, 2]
    now = 0.0
    for lineages in range(2, tips):
        now += rng.exponential(1 / lineages)
        place = int(rng.integers(lineages))
        node = alive[place]
        ended[node] = now
        alive[place] = len(parents)
        alive.append(len(parents) + 1)
        parents += [node, node]
        born += [now, now]
    now += rng.exponential(1 / tips)
    ends = np.array([ended.get(node, now) for node in range(len(parents))])
    rates = rng.gamma(CLOCK_SHAPE, 1 / CLOCK_SHAPE, len(parents))
    lengths = (ends - np.array(born)) * rates * (HEIGHT / now)
    return SimulatedTree(np.array(parents), lengths, np.sort(np.array(alive)))


def clades(tree: SimulatedTree, count: int) -> npt.NDArray[np.int64]:
    """Return the clade of each tip, int64 [F], where the tree is cut at `count` lineages."""
    early = min(2 * count, 2 * len(tree.tips)) - 1
    origin = np.arange(len(tree.parents))
    for node in range(early, len(origin)):
        origin[node] = origin[tree.parents[node]]
    found: npt.NDArray[np.int64] = np.unique(origin[tree.tips], return_inverse=True)[1]
    return found


def brownian(tree: SimulatedTree, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Simulate a trait by Brownian motion; float64 [F], standardised over the tips."""
    steps = rng.standard_normal(len(tree.parents)) * np.sqrt(tree.lengths)
    values = np.zeros(len(steps))
    for node in range(1, len(steps)):
        values[node] = values[tree.parents[node]] + steps[node]
    tips = values[tree.tips]
    standard: npt.NDArray[np.float64] = (tips - tips.mean()) / max(float(tips.std()), 1e-12)
    return standard


def evolve_dna(tree: SimulatedTree, length: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Evolve `length` nucleotides by Kimura's two-parameter model with gamma rates of sites.

    Equal tips get one more substitution each until all F sequences are distinct.
    """
    rates = rng.gamma(SITE_SHAPE, 1 / SITE_SHAPE, length)
    rates /= rates.mean()
    codes = np.empty((len(tree.parents), length), dtype=np.uint8)
    codes[0] = rng.integers(4, size=length)
    for node in range(1, len(codes)):
        distance = rates * tree.lengths[node]
        slow = np.exp(-4 * distance / (KAPPA + 2))
        fast = np.exp(-2 * distance * (KAPPA + 1) / (KAPPA + 2))
        transition = 0.25 + 0.25 * slow - 0.5 * fast
        transversion = 0.5 - 0.5 * slow
        drawn = rng.random(length)
        change = np.where(drawn < transition, _TRANSITION, 0)
        other = (drawn >= transition) & (drawn < transition + transversion)
        change[other] = np.where(drawn[other] < (transition + transversion / 2)[other], 1, 3)
        codes[node] = codes[tree.parents[node]] ^ change
    tips = codes[tree.tips]
    seen: set[bytes] = set()
    for row in tips:
        while row.tobytes() in seen:
            row[rng.integers(length)] ^= rng.integers(1, 4)
        seen.add(row.tobytes())
    return tuple(_LETTERS[row].tobytes().decode("ascii") for row in tips)


def newick(tree: SimulatedTree, names: Sequence[str]) -> str:
    """Write the tree with `names` [F] at its tips, in the order of `tree.tips`."""
    labels = dict(zip(tree.tips.tolist(), names, strict=True))
    children: dict[int, list[str]] = {}
    for node in range(len(tree.parents) - 1, 0, -1):
        inner = children.pop(node, None)
        label = labels[node] if inner is None else f"({','.join(inner)})"
        children.setdefault(int(tree.parents[node]), []).append(f"{label}:{tree.lengths[node]:.9g}")
    return f"({','.join(children[0])});\n"
