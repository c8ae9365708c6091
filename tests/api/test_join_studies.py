"""`aam.join_studies`: studies in memory, as the command joins files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import biom
import numpy as np
import pandas as pd
import pytest

import aam
from aam.contract.errors import DataError, UsageError
from aam.contract.options.groups import TableOptions
from aam.data.metadata import read_metadata
from aam.data.sequences import decode
from aam.data.study import load_study
from tests.support.commands import aam as run

NAMES = ("a", "b", "c")
RELABEL = {"disease": {"yes": "case", "no": "control"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three studies as files, and joined by the command."""
    folder = tmp_path_factory.mktemp("studies")
    size = ("--samples", 12, "--asvs", 200, "--richness", 30)
    assert run("example", "--output-dir", folder, "--studies", 3, *size) == 0
    given: list[object] = []
    for name in NAMES:
        given += ["--table", folder / name / "table.biom"]
        given += ["--metadata", folder / name / "metadata.tsv"]
    more = ("--studies", "a,b,c", "--relabel", "disease:yes=case,disease:no=control")
    assert run("prepare", *given, *more, "--output", folder / "joined.aam") == 0
    return folder


def frames(folder: Path) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    tables, metadata = {}, {}
    for name in NAMES:
        table = biom.load_table(str(folder / name / "table.biom"))
        tables[name] = table.to_dataframe(dense=True).T
        file = folder / name / "metadata.tsv"
        metadata[name] = pd.read_csv(file, sep="\t", index_col=0, skiprows=[1])
    return tables, metadata


def anndata(table: pd.DataFrame, obs: pd.DataFrame) -> Any:
    """Return what the interface reads of AnnData, with hashes as names of features."""
    names = [f"ASV_{column}" for column in range(table.shape[1])]
    var = pd.DataFrame({"sequence": table.columns}, index=names)
    return SimpleNamespace(
        X=table.to_numpy(), obs_names=table.index, var_names=var.index, obs=obs, var=var
    )


def test_frames_are_joined_as_files_are(folder: Path) -> None:
    tables, metadata = frames(folder)
    table, described = aam.join_studies(tables, metadata, relabel=RELABEL)
    store = folder / "joined.aam"
    study, stored = load_study(TableOptions(table=store)), read_metadata(store)
    ids = tuple(study.table.sample_ids)
    assert tuple(table.ids()) == tuple(described.index) == ids
    assert tuple(table.ids("observation")) == decode(study.tokens_FL)
    whole = study.counts(np.arange(len(ids))).toarray()
    np.testing.assert_array_equal(table.matrix_data.T.toarray(), whole)
    assert described.study.tolist() == stored.values("study", ids).tolist()
    assert described.disease.tolist() == stored.values("disease", ids).tolist()
    assert described.ph.dtype == np.float64
    assert described.ph.tolist() == [float(text) for text in stored.values("ph", ids)]


def test_anndata_bring_their_metadata_and_sequences(folder: Path) -> None:
    tables, metadata = frames(folder)
    same = {name: anndata(tables[name], metadata[name]) for name in NAMES}
    table, described = aam.join_studies(same, relabel=RELABEL, trim_length=100)
    assert {len(dna) for dna in table.ids("observation")} == {100}
    assert table.sum() == sum(frame.to_numpy().sum() for frame in tables.values())
    assert described.groupby("study").size().to_dict() == dict.fromkeys(NAMES, 12)
    assert set(described.disease) == {"case", "control"}


def test_joined_studies_are_fitted(folder: Path) -> None:
    tables, metadata = frames(folder)
    table, described = aam.join_studies(tables, metadata, relabel=RELABEL)
    model = aam.AAMClassifier(members="forest", folds=3, repeats=1)
    model.fit(table, described.disease, groups=described.study)
    assert len(model.predict(table)) == 36


def test_what_is_wrong_is_named(folder: Path) -> None:
    tables, metadata = frames(folder)
    with pytest.warns(aam.AamWarning, match="'disease' has other classes"):
        aam.join_studies(tables, metadata)
    with pytest.raises(UsageError, match="One study alone"):
        aam.join_studies({"a": tables["a"]})
    with pytest.raises(UsageError, match="Not metadata for each study"):
        aam.join_studies(tables, {"a": metadata["a"]})
    with pytest.raises(UsageError, match="Invalid trim_length"):
        aam.join_studies(tables, metadata, trim_length=-1)
    with pytest.raises(DataError, match="did you mean 'disease'"):
        aam.join_studies(tables, metadata, relabel={"diseas": "disease"})
    for value in (3, [1], "x", np.zeros(3), 3.5, b"x", True):
        for given in ("metadata", "sequences", "relabel"):
            with pytest.raises(UsageError, match=f"(Invalid|Not) {given}"):
                aam.join_studies(tables, **{"metadata": metadata, given: value})
    for relabel in ({"disease": [1]}, {"disease": {"a": None}}, {b"x": "y"}):
        with pytest.raises(UsageError, match="Invalid relabel"):
            aam.join_studies(tables, metadata, relabel=relabel)
    with pytest.raises(UsageError, match="No studies"):
        aam.join_studies({})
    wrong: list[Any] = [None, ("a",), "", "\udcff", b"a"]
    for name in wrong:
        with pytest.raises(DataError, match=r"[Ss]tud(y|ies) "):
            aam.join_studies({name: tables["a"], "b": tables["b"]})
    odd: list[Any] = ["..", 3, "x" * 300]
    for name in odd:
        _, described = aam.join_studies({name: tables["a"], "b": tables["b"]})
        assert described.study.tolist() == [str(name)] * 12 + ["b"] * 12
    other = {"a": tables["a"], "b": tables["b"].rename(columns=lambda dna: dna[9:])}
    with pytest.raises(DataError, match="study 'b' begin 9 nucleotides later"):
        aam.join_studies(other)
