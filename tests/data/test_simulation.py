"""Simulated studies: reproducible, readable, and with the truth that they claim."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from aam.cli import main
from aam.contract.errors import CannotCreate, UsageError
from aam.contract.options.commands.studies import Example
from aam.data.simulation import SimulatedStudy, simulate, truth, write_study
from aam.data.table import read_table
from aam.data.taxonomy import named_ranks, read_taxonomy

SMALL = Example(
    output_dir=Path("."), samples=30, asvs=120, length=60, richness=25, depth=800, subjects=6
)


@pytest.fixture(scope="module")
def default() -> SimulatedStudy:
    return simulate(
        Example(
            output_dir=Path("."), samples=200, asvs=2000, richness=185, depth=10_000, subjects=40
        )
    )


def unifrac(study: SimulatedStudy, rows: int, metric: str) -> np.ndarray:
    import io

    import skbio
    from skbio.diversity import beta_diversity

    from aam.data.simulation import newick

    tree = skbio.TreeNode.read(io.StringIO(newick(study.tree, study.sequences)))
    counts = study.counts[: rows * 3 : 3].toarray()
    return beta_diversity(metric, counts, taxa=study.sequences, tree=tree).condensed_form()


def test_the_same_seed_writes_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    written = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        options = dataclasses.replace(SMALL, output_dir=tmp_path / name, seed=seed)
        places = write_study(simulate(options), options)
        written.append([place.read_bytes() for place in places])
    assert written[0] == written[1]
    assert all(one != other for one, other in zip(written[0], written[2], strict=True))


def test_the_command_writes_what_the_readers_read(tmp_path: Path) -> None:
    args = [
        "--samples",
        "30",
        "--asvs",
        "120",
        "--richness",
        "25",
        "--depth",
        "800",
        "--subjects",
        "6",
        "--length",
        "60",
    ]
    assert main(["example", "--output-dir", str(tmp_path), *args]) == 0
    study = simulate(SMALL)
    table = read_table(tmp_path / "table.biom")
    assert table.sample_ids == study.sample_ids
    columns = [study.sequences.index(name) for name in table.feature_ids]
    assert (table.counts != study.counts[:, columns]).nnz == 0
    assert table.counts.sum() == study.counts.sum()
    lines = (tmp_path / "metadata.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["sample-id", "ph", "site", "subject", "depth"]
    assert [line.split("\t")[0] for line in lines[2:]] == list(study.sample_ids)
    assert [int(line.split("\t")[4]) for line in lines[2:]] == study.reads.tolist()
    known = json.loads((tmp_path / "truth.json").read_text())
    assert known["measured"]["mean_richness"] == pytest.approx(study.richness.mean(), abs=0.01)
    assert main(["example", "--output-dir", str(tmp_path), *args]) == CannotCreate.status


def test_the_taxa_are_clades_of_the_tree(tmp_path: Path) -> None:
    options = dataclasses.replace(SMALL, output_dir=tmp_path)
    study = simulate(options)
    write_study(study, options)
    taxa = read_taxonomy(tmp_path / "taxonomy.tsv")
    assert {*taxa} == {*read_table(tmp_path / "table.biom").feature_ids}
    tips = dict(zip(study.sequences, study.tree.tips.tolist(), strict=True))
    for rank in (1, 2):
        members: dict[str, list[int]] = {}
        for name, taxon in taxa.items():
            members.setdefault("; ".join(named_ranks(taxon)[: rank + 1]), []).append(tips[name])
        assert len(members) > 5
        below = [clade_below(study.tree.parents, own) for own in members.values()]
        assert sum(map(len, below)) == len(set().union(*below))  # the clades are disjoint


def clade_below(parents: npt.NDArray[np.int64], tips: list[int]) -> set[int]:
    """Return the tips below the last common ancestor of some tips."""

    def ancestors(node: int) -> list[int]:
        line = [node]
        while line[-1] > 0:
            line.append(int(parents[line[-1]]))
        return line

    common = set.intersection(*(set(ancestors(tip)) for tip in tips))
    last = max(common)  # a parent has a lower number than its children
    inner = set(parents.tolist())
    return {node for node in range(len(parents)) if node not in inner and last in ancestors(node)}


def test_the_tree_holds_every_sequence_once(tmp_path: Path) -> None:
    import skbio

    options = dataclasses.replace(SMALL, output_dir=tmp_path)
    study = simulate(options)
    write_study(study, options)
    tree = skbio.TreeNode.read(str(tmp_path / "tree.nwk"))
    assert sorted(tip.name for tip in tree.tips()) == sorted(set(study.sequences))
    assert len(study.sequences) == 120
    assert all(len(name) == 60 and set(name) <= set("ACGT") for name in study.sequences)
    assert len(tree.children) == 2
    assert all(node.length >= 0 for node in tree.traverse(include_self=False))


def test_near_tips_have_near_sequences_and_near_niches(default: SimulatedStudy) -> None:
    letters = np.array([list(name) for name in default.sequences])
    # Sisters share their parent; strangers are drawn at random.
    parents = default.tree.parents[default.tree.tips]
    order = np.argsort(parents, kind="stable")
    same = np.flatnonzero(parents[order][1:] == parents[order][:-1])
    one, two = order[same], order[same + 1]
    rng = np.random.default_rng(0)
    far = rng.permutation(len(letters))[: len(one)]
    assert (letters[one] != letters[two]).mean() < 0.4 * (letters[one] != letters[far]).mean()
    assert np.median(abs(default.optimum[one] - default.optimum[two])) < 0.5 * np.median(
        abs(default.optimum[one] - default.optimum[far])
    )


def test_the_default_study_has_realistic_statistics(default: SimulatedStudy) -> None:
    assert default.counts.shape == (200, 2000)
    assert default.richness.mean() == pytest.approx(185, rel=0.1)
    assert default.reads.mean() == pytest.approx(10_000, rel=0.1)
    assert default.reads.min() >= 1
    assert 4 <= default.ph.min() < 4.6
    assert 8.4 < default.ph.max() <= 9
    distances = unifrac(default, 40, "unweighted_unifrac")
    assert 0.5 < distances.mean() < 0.75
    assert distances.std() > 0.05


@pytest.mark.medium
def test_a_random_forest_predicts_part_of_the_gradient(default: SimulatedStudy) -> None:
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import GroupKFold, cross_val_predict

    relative = (default.counts / default.reads[:, None]).toarray()
    forest = RandomForestRegressor(50, max_features=0.3, min_samples_leaf=2, random_state=0)
    guessed = cross_val_predict(
        forest, relative, default.ph, cv=GroupKFold(5), groups=default.subject
    )
    left = np.square(guessed - default.ph).sum() / np.square(default.ph - default.ph.mean()).sum()
    assert 0.55 < 1 - left < 0.88
    known = truth(
        default,
        Example(
            output_dir=Path("."), samples=200, asvs=2000, richness=185, depth=10_000, subjects=40
        ),
    )["measured"]["r2_of_the_gradient"]
    assert 1 - left < known < 1


def test_samples_of_one_subject_are_alike(default: SimulatedStudy) -> None:
    held = default.counts.toarray() > 0
    shared = held.astype(int) @ held.T.astype(int)
    either = held.sum(1)[:, None] + held.sum(1)[None] - shared
    jaccard = shared / either
    same = default.subject[:, None] == default.subject[None]
    off = ~np.eye(200, dtype=bool)
    assert jaccard[same & off].mean() > 1.2 * jaccard[~same].mean()
    one_site = {(int(s), int(p)) for s, p in zip(default.site, default.subject, strict=True)}
    assert len(one_site) == 40


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": 1},
        {"asvs": 1},
        {"length": 3},
        {"length": 4, "asvs": 100},
        {"richness": 121},
        {"depth": 10},
        {"sites": 0},
        {"subjects": 31},
        {"seed": -1},
    ],
)
def test_impossible_sizes_are_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError) as caught:
        simulate(dataclasses.replace(SMALL, **wrong))
    assert any(f"--{name}" in str(caught.value) for name in (*wrong, "asvs"))


def test_the_smallest_study_works() -> None:
    tiny = Example(
        output_dir=Path("."), samples=2, asvs=2, length=4, richness=1, depth=1, sites=1, subjects=1
    )
    study = simulate(tiny)
    assert study.counts.shape == (2, 2)
    assert (study.reads >= 1).all()


def test_no_file_remains_when_one_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text("mine")
    options = dataclasses.replace(SMALL, output_dir=tmp_path)
    with pytest.raises(CannotCreate):
        write_study(simulate(options), options)
    assert [place.name for place in tmp_path.iterdir()] == ["truth.json"]
    assert (tmp_path / "truth.json").read_text() == "mine"
