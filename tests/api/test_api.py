"""Python interface: results for tables in memory equal those of the commands."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import biom
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from skbio import DistanceMatrix, TreeNode

import aam
from aam.cli import main
from aam.contract.errors import DataError, MissingInput, UsageError

SMALL = {
    "epochs": 1,
    "embedding_dim": 8,
    "attention_heads": 2,
    "attention_layers": 1,
    "profile_features": 8,
    "rarefy_depth": 0,  # draws depend on the order of the feature ids
    "device": "cpu",
    "members": "transformer",
}
FLAGS = [part for k, v in SMALL.items() for part in (f"--{k.replace('_', '-')}", str(v))]
SMALL["members"] = ("transformer",)


@pytest.fixture(scope="module")
def table(study_dir: Path) -> biom.Table:
    return biom.load_table(str(study_dir / "table.biom"))


@pytest.fixture(scope="module")
def metadata(study_dir: Path, table: biom.Table) -> pd.DataFrame:
    whole = pd.read_csv(study_dir / "metadata.tsv", sep="\t", index_col=0, skiprows=[1])
    return whole.loc[list(table.ids())]


@pytest.fixture(scope="module")
def run(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of `aam train` on the column ph."""
    folder = tmp_path_factory.mktemp("api") / "run"
    data = ["--table", str(study_dir / "table.biom"), "--metadata", str(study_dir / "metadata.tsv")]
    column = ["--metadata-column", "ph", "--group-column", "subject"]
    members = ["--members", "transformer"]
    assert main(["train", *data, *column, *members, *FLAGS, "--output-dir", str(folder)]) == 0
    return folder


def written(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t", index_col=0)


def test_predictions_are_those_of_the_command(
    run: Path, study_dir: Path, table: biom.Table, tmp_path: Path
) -> None:
    data = ["--table", str(study_dir / "table.biom"), "--output", str(tmp_path / "p.tsv")]
    assert main(["predict", "--model", str(run), *data, "--device", "cpu"]) == 0
    found = aam.load(run).predict(table)
    assert list(found.index) == list(table.ids())
    expected = written(tmp_path / "p.tsv")
    assert list(found.columns) == list(expected.columns)
    assert_allclose(found["predicted"], expected["predicted"], rtol=1e-6)


def test_embeddings_are_those_of_the_run(run: Path, study_dir: Path) -> None:
    found = aam.load(run).embed(study_dir / "table.biom")
    expected = written(run / "embeddings.tsv")
    assert_allclose(found.loc[expected.index], expected, rtol=1e-4, atol=1e-5)


def anndata(table: biom.Table, names: list[str]) -> Any:
    """What AnnData is to this interface: X, obs_names, var_names and var."""
    var = pd.DataFrame({"sequence": list(table.ids("observation"))}, index=names)
    X = sparse.csr_matrix(table.matrix_data.T)
    return SimpleNamespace(X=X, obs_names=pd.Index(table.ids()), var_names=var.index, var=var)


def test_tables_of_every_type_are_equal(run: Path, table: biom.Table) -> None:
    model = aam.load(run)
    expected = model.predict(table)["predicted"]
    frame = table.to_dataframe(dense=True).T
    names = [f"asv{column}" for column in range(frame.shape[1])]
    dna = dict(zip(names, frame.columns, strict=True))
    arrays = {f"x{column}": sequence for column, sequence in enumerate(frame.columns)}
    for other, sequences in (
        (frame, None),
        (frame.set_axis(names, axis=1), dna),
        (anndata(table, names), None),
        (frame.to_numpy(), arrays),
    ):
        assert_allclose(model.predict(other, sequences)["predicted"], expected, rtol=1e-5)


def test_a_regressor_is_the_command_in_memory(
    run: Path, table: biom.Table, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    regressor = aam.AAMRegressor(**SMALL, output_dir=tmp_path / "fit")
    regressor.fit(table, metadata.ph, groups=metadata.subject)
    # The splits are equal, and so are the networks.
    assert_allclose(regressor.predict(table), aam.load(run).predict(table)["predicted"], rtol=1e-5)
    assert aam.load(tmp_path / "fit").column == "ph"
    again = pickle.loads(pickle.dumps(regressor))
    assert_allclose(again.predict(table), regressor.predict(table))


def test_a_classifier_returns_the_labels_it_was_given(
    table: biom.Table, metadata: pd.DataFrame
) -> None:
    labels = metadata.site.str.removeprefix("site-").astype(int).to_numpy()
    classifier = aam.AAMClassifier(**SMALL, stratify=True).fit(table, labels)
    probabilities_NC = classifier.predict_proba(table)
    assert classifier.classes_.tolist() == [1, 2, 3]
    assert_allclose(probabilities_NC.sum(axis=1), 1, rtol=1e-6)
    assert (classifier.predict(table) == 1 + probabilities_NC.argmax(axis=1)).all()


@pytest.mark.medium
def test_the_default_is_the_ensemble_of_the_command(
    study_dir: Path, table: biom.Table, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    regressor = aam.AAMRegressor(output_dir=tmp_path / "fit").fit(table, metadata.ph)
    data = ["--table", str(study_dir / "table.biom"), "--output", str(tmp_path / "p.tsv")]
    assert main(["predict", "--model", str(tmp_path / "fit"), *data]) == 0
    expected = written(tmp_path / "p.tsv")
    again = pickle.loads(pickle.dumps(regressor))
    assert_allclose(again.predict(table), expected["predicted"], rtol=1e-6)
    model = aam.load(tmp_path / "fit")
    assert model.column == "ph"
    assert list(model.predict(table).columns) == list(expected.columns)
    with pytest.raises(DataError, match="The model has no embedding"):
        model.embed(table)


def test_parameters_are_the_options_of_train() -> None:
    parameters = aam.AAMRegressor().get_params()
    assert parameters["epochs"] == 50
    assert parameters["tree"] is None
    assert "metadata" not in parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_type": "hubr"}, "Invalid loss_type: 'hubr'"),
        ({"epochs": "10"}, "Invalid epochs"),
        ({"epochs": 0}, "--epochs 0"),
    ],
)
def test_invalid_options(
    table: biom.Table, metadata: pd.DataFrame, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        aam.AAMRegressor(**SMALL | change).fit(table, metadata.ph)


def test_errors_name_the_table_and_no_temporary_file(run: Path, table: biom.Table) -> None:
    model, frame = aam.load(run), table.to_dataframe(dense=True).T
    with pytest.raises(DataError, match="Fractional counts in the table: "):
        model.predict(frame / 2)
    with pytest.raises(DataError, match="Duplicated sample ids"):
        model.predict(pd.concat([frame, frame]))
    with pytest.raises(DataError, match="give their representative sequences"):
        model.predict(frame.to_numpy())
    with pytest.raises(DataError, match="Not a table: int of 0 dimensions"):
        model.predict(3)
    with pytest.raises(MissingInput, match="No model"):
        aam.load(run / "no-such-folder")


def test_labels_that_mean_a_missing_value_are_refused(
    table: biom.Table, metadata: pd.DataFrame
) -> None:
    labels = metadata.site.replace("site-1", "none")
    with pytest.raises(DataError, match="Class labels that metadata cannot hold: 1 \\(none\\)"):
        aam.AAMClassifier(**SMALL).fit(table, labels)


def test_unifrac_is_that_of_the_command(study_dir: Path, table: biom.Table, tmp_path: Path) -> None:
    output, tree = tmp_path / "d.tsv", study_dir / "tree.nwk"
    data = ["--table", str(study_dir / "table.biom"), "--tree", str(tree), "--output", str(output)]
    assert main(["unifrac", *data, "--unifrac-metric", "weighted", "--device", "cpu"]) == 0
    expected = DistanceMatrix.read(output)
    for given in (tree, TreeNode.read(str(tree), convert_underscores=False)):
        found = aam.unifrac(table, given, metric="weighted")
        assert isinstance(found, DistanceMatrix)
        assert found.ids == expected.ids
        assert_allclose(found.data, expected.data, atol=1e-6)
    with pytest.raises(UsageError, match="Faith PD is no distance"):
        aam.unifrac(table, tree, metric="faith_pd")


CODE = """
import sys, threading, warnings, aam, biom, numpy
warnings.simplefilter("ignore", aam.AamWarning)
table = biom.load_table(sys.argv[1])
options = dict(epochs=2, embedding_dim=8, attention_heads=2, attention_layers=1, device="cpu",
               profile_features=8, rarefy_depth=0, members=("transformer",))
model = aam.AAMRegressor(**options)
fit = threading.Thread(target=model.fit, args=(table, numpy.arange(table.shape[1])))
fit.start(); fit.join()
assert model.predict(table).shape == (table.shape[1],)
"""


@pytest.mark.slow
def test_nothing_is_printed_not_even_on_a_terminal(study_dir: Path) -> None:
    """In a thread, where Python cannot handle signals."""
    code = [sys.executable, "-c", CODE, str(study_dir / "table.biom")]
    plain = subprocess.run(code, capture_output=True, text=True, check=True)
    assert plain.stdout + plain.stderr == ""
    shell = " ".join(f"'{part}'" for part in code).replace("'" + CODE + "'", '"$CODE"')
    terminal = subprocess.run(
        ["script", "-qec", shell, "/dev/null"],
        capture_output=True,
        text=True,
        check=True,
        env={"CODE": CODE, "PATH": "/usr/bin:/bin", "TERM": "xterm", "HOME": str(study_dir)},
    )
    assert terminal.stdout.strip() == ""


def test_importing_the_package_imports_no_library() -> None:
    code = "import aam, sys; dir(aam); print({'torch', 'numpy', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        aam.nothing  # noqa: B018
