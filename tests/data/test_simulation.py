"""Simulated studies: reproducible, readable, and with the truth that they claim."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import skbio
from skbio.diversity import beta_diversity

from aam.contract.errors import UsageError
from aam.contract.options.commands.studies import Example
from aam.contract.options.groups import TableOptions
from aam.data.metadata import read_metadata
from aam.data.simulation import SimulatedStudy, newick, simulate, write_study
from aam.data.study import load_study
from aam.data.table import read_table
from aam.data.taxonomy import named_ranks, read_taxonomy
from tests.support.commands import aam

SMALL = Example(
    output_dir=Path("."), samples=30, asvs=120, length=60, richness=25, depth=800, subjects=6
)
LARGER = Example(
    output_dir=Path("."), samples=200, asvs=2000, richness=185, depth=10_000, subjects=40
)


@pytest.fixture(scope="module")
def larger() -> SimulatedStudy:
    return simulate(LARGER)


def test_the_same_seed_writes_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    written = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        options = dataclasses.replace(SMALL, output_dir=tmp_path / name, seed=seed)
        places = write_study(simulate(options), options)
        written.append([place.read_bytes() for place in places])
    assert written[0] == written[1]
    assert all(one != other for one, other in zip(written[0], written[2], strict=True))


def test_the_files_hold_what_was_simulated(tmp_path: Path) -> None:
    options = dataclasses.replace(SMALL, output_dir=tmp_path)
    study = simulate(options)
    write_study(study, options)
    table = read_table(tmp_path / "table.biom")
    assert table.sample_ids == study.sample_ids
    columns = [study.feature_ids.index(name) for name in table.feature_ids]
    assert (table.counts != study.counts[:, columns]).nnz == 0
    assert table.counts.sum() == study.counts.sum()
    lines = (tmp_path / "metadata.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["sample-id", "ph", "site", "subject", "depth"]
    assert [int(line.split("\t")[4]) for line in lines[2:]] == study.reads.tolist()
    known = json.loads((tmp_path / "truth.json").read_text())
    assert known["measured"]["mean_richness"] == pytest.approx(study.richness.mean(), abs=0.01)

    tree = skbio.TreeNode.read(str(tmp_path / "tree.nwk"))
    assert sorted(tip.name for tip in tree.tips()) == sorted(set(study.feature_ids))
    assert len(study.feature_ids) == 120
    assert all(len(name) == 60 and set(name) <= set("ACGT") for name in study.feature_ids)
    assert len(tree.children) == 2
    assert all(node.length >= 0 for node in tree.traverse(include_self=False))

    taxa = read_taxonomy(tmp_path / "taxonomy.tsv")
    assert {*taxa} == {*table.feature_ids}
    tips = dict(zip(study.feature_ids, study.tree.tips.tolist(), strict=True))
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


def test_near_tips_have_near_sequences_and_near_niches(larger: SimulatedStudy) -> None:
    letters = np.array([list(name) for name in larger.feature_ids])
    # Sisters share their parent; strangers are drawn at random.
    parents = larger.tree.parents[larger.tree.tips]
    order = np.argsort(parents, kind="stable")
    same = np.flatnonzero(parents[order][1:] == parents[order][:-1])
    one, two = order[same], order[same + 1]
    far = np.random.default_rng(0).permutation(len(letters))[: len(one)]
    assert (letters[one] != letters[two]).mean() < 0.4 * (letters[one] != letters[far]).mean()
    near, strange = (
        np.median(abs(larger.niches.optimum[one] - larger.niches.optimum[k])) for k in (two, far)
    )
    assert near < 0.5 * strange


def test_a_study_has_realistic_statistics(larger: SimulatedStudy) -> None:
    assert larger.counts.shape == (200, 2000)
    assert larger.richness.mean() == pytest.approx(185, rel=0.1)
    assert larger.reads.mean() == pytest.approx(10_000, rel=0.1)
    assert larger.reads.min() >= 1
    assert 4 <= larger.places.ph.min() < 4.6
    assert 8.4 < larger.places.ph.max() <= 9
    tree = skbio.TreeNode.read(io.StringIO(newick(larger.tree, larger.feature_ids)))
    counts = larger.counts[:120:3].toarray()
    made = beta_diversity("unweighted_unifrac", counts, taxa=larger.feature_ids, tree=tree)
    distances = made.condensed_form()
    assert 0.5 < distances.mean() < 0.75
    assert distances.std() > 0.05
    # Samples of one subject are alike.
    held = larger.counts.toarray() > 0
    shared = held.astype(int) @ held.T.astype(int)
    jaccard = shared / (held.sum(1)[:, None] + held.sum(1)[None] - shared)
    same = larger.places.subject[:, None] == larger.places.subject[None]
    assert jaccard[same & ~np.eye(200, dtype=bool)].mean() > 1.2 * jaccard[~same].mean()
    assert (
        len({*zip(larger.places.site.tolist(), larger.places.subject.tolist(), strict=True)}) == 40
    )


@pytest.mark.medium
def test_a_random_forest_predicts_part_of_the_gradient(
    larger: SimulatedStudy, tmp_path: Path
) -> None:
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.model_selection import GroupKFold, cross_val_predict

    relative = (larger.counts / larger.reads[:, None]).toarray()
    forest = RandomForestRegressor(50, max_features=0.3, min_samples_leaf=2, random_state=0)
    guessed = cross_val_predict(
        forest, relative, larger.places.ph, cv=GroupKFold(5), groups=larger.places.subject
    )
    left = (
        np.square(guessed - larger.places.ph).sum()
        / np.square(larger.places.ph - larger.places.ph.mean()).sum()
    )
    assert 0.55 < 1 - left < 0.88
    write_study(larger, dataclasses.replace(LARGER, output_dir=tmp_path))
    known = json.loads((tmp_path / "truth.json").read_text())["measured"]["r2_of_the_gradient"]
    assert 1 - left < known < 1


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("samples", 1, "--samples"),
        ("length", 4, "--asvs"),  # too short for 120 different sequences
        ("richness", 121, "--richness"),
        ("depth", 10, "--depth"),
        ("subjects", 31, "--subjects"),
        ("studies", 27, "--studies"),
        ("seed", -1, "--seed"),
    ],
)
def test_impossible_sizes_are_refused_by_name(name: str, value: int, flag: str) -> None:
    options = {**vars(SMALL), name: value}
    if name == "length":
        options["asvs"] = 100
    with pytest.raises(UsageError, match=flag):
        simulate(Example(**options))


def test_the_smallest_study_works() -> None:
    tiny = Example(
        output_dir=Path("."), samples=2, asvs=2, length=4, richness=1, depth=1, sites=1, subjects=1
    )
    study = simulate(tiny)
    assert study.counts.shape == (2, 2)
    assert (study.reads >= 1).all()


@pytest.fixture(scope="module")
def studies() -> tuple[Example, SimulatedStudy]:
    options = dataclasses.replace(LARGER, samples=60, studies=4, subjects=0, asvs=500, richness=60)
    return options, simulate(options)


def test_studies_differ_in_asvs_depth_and_cases_and_share_the_disease(
    studies: tuple[Example, SimulatedStudy],
) -> None:
    _, study = studies
    counts = study.counts.toarray()
    shares = [float(study.studies.is_case[study.studies.number == k].mean()) for k in range(4)]
    assert shares == pytest.approx([0.3, 0.433, 0.567, 0.7], abs=0.02)
    has_KF = np.array([counts[study.studies.number == k].any(axis=0) for k in range(4)])
    assert 0.3 < (has_KF[0] & has_KF[1]).sum() / has_KF[0].sum() < 0.8
    depths = [float(study.reads[study.studies.number == k].mean()) for k in range(4)]
    assert max(depths) > 1.3 * min(depths)
    shared_F = (study.studies.disease_KF != 0).all(axis=0)
    own_KF = (study.studies.disease_KF != 0) & ~shared_F
    assert own_KF.any(axis=1).all()
    assert own_KF.sum(axis=0).max() == 1
    for k in range(4):
        present = counts[study.studies.number == k] > 0
        cases = study.studies.is_case[study.studies.number == k]
        shift_F = present[cases].mean(axis=0) - present[~cases].mean(axis=0)
        moved = float((shift_F * study.studies.disease_KF[k])[shared_F & has_KF[k]].mean())
        assert moved > 0.03
        assert float((shift_F * study.studies.disease_KF[k])[own_KF[k] & has_KF[k]].mean()) > 0.03


def test_studies_are_written_apart_and_join(
    studies: tuple[Example, SimulatedStudy], tmp_path: Path
) -> None:
    options = dataclasses.replace(studies[0], output_dir=tmp_path)
    write_study(studies[1], options)
    assert {path.name for path in tmp_path.iterdir()} == {
        "a", "b", "c", "d", "tree.nwk", "taxonomy.tsv", "truth.json"
    }  # fmt: skip
    tables = {name: read_table(tmp_path / name / "table.biom") for name in "abcd"}
    assert {len(name) for name in tables["b"].feature_ids} == {150}
    assert {len(name) for name in tables["c"].feature_ids} == {120}
    # The third has one metadata column with other classes, and all have the same sample ids.
    given = [word for name in "abcd" for word in ("--table", tmp_path / name / "table.biom")]
    given += [word for name in "abcd" for word in ("--metadata", tmp_path / name / "metadata.tsv")]
    relabel = "disease:yes=case,disease:no=control"
    more = ("--studies", "a,b,c,d", "--relabel", relabel, "--tree", tmp_path / "tree.nwk")
    store = tmp_path / "joined.aam"
    assert aam("prepare", *given, *more, "--output", store) == 0
    metadata = read_metadata(store)
    assert set(metadata.columns["disease"]) == {"case", "control"}
    taxa = read_taxonomy(tmp_path / "taxonomy.tsv")
    joined = load_study(TableOptions(table=store))
    assert set(joined.table.feature_ids) <= taxa.keys()
    assert joined.reads.sum() == studies[1].reads.sum()
    changed = json.loads((tmp_path / "truth.json").read_text())["disease"]
    assert len(set.intersection(*(set(genera) for genera in changed.values()))) == 3
