"""`aam importance`: exact effects, planted ASVs, taxonomy, refusals, and its part of the report."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shlex
import shutil
from pathlib import Path

import biom
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from skbio.metadata import SampleMetadata
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import aam as api
from aam.arrays import F64
from aam.contract.errors import DataError, MissingInput, UsageError
from aam.contract.options.groups import TableOptions, TransformName
from aam.data.study import load_study
from aam.data.targets import TRANSFORMS, TargetScale
from aam.data.taxonomy import named_ranks, read_taxonomy
from aam.evaluation.labels import Labels
from aam.members.forest import ForestInputs, as_csc, model_of
from aam.members.importance import importance_table
from aam.members.kernel import Kernel, KernelInputs, KernelModel, KernelTerms, Landmarks
from aam.members.member import Outputs
from aam.members.model_file import TrainedModel
from aam.members.relations import AsvRelations, mismatches, similarity
from aam.members.samples import Samples
from aam.nucleotide_codes import FINEST
from benchmarks.depth_associations import simulated
from tests.support.artifacts import write_artifact
from tests.support.commands import TINY, aam, pretrain
from tests.support.commands import train as train_network

PLANTED = 20


def _planted_among_first(study: Path, table: pd.DataFrame) -> float:
    """Return the precision at 20."""
    planted = json.loads((study / "truth.json").read_text())["planted"]
    assert len(planted) == PLANTED
    return len(planted.keys() & set(table.index[:PLANTED])) / PLANTED


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "response"
    return _train(study, folder, "response", "--members", "kernel")


def _features(table: biom.Table) -> F64:
    counts = table.matrix_data.T.toarray()
    features: F64 = np.log10(1 + FINEST * counts / counts.sum(axis=1, keepdims=True))
    return features


def _train(study: Path, folder: Path, column: str, *args: object) -> Path:
    status = aam(
        "train", "--table", study / "table.biom", "--metadata", study / "metadata.tsv",
        "--metadata-column", column, "--output-dir", folder, "--rarefy-depth", 0, *args,
    )  # fmt: skip
    assert status == 0
    return folder


def _importance(study: Path, model: Path, output: Path, *args: object) -> int:
    table = study / "table.biom"
    return aam("importance", "--table", table, "--model", model, "--output", output, *args)


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t", index_col="feature-id")


@pytest.mark.medium
def test_planted_asvs_are_found(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the first 20 ASVs 13 are planted; chance finds 1.3 of 300."""
    assert _importance(study, run, tmp_path / "i.tsv") == 0
    printed = " ".join(capsys.readouterr().err.split())
    found = _read(tmp_path / "i.tsv")
    assert _planted_among_first(study, found) >= 0.5
    folds = [f"rank_fold_{fold}" for fold in range(1, 6)]
    measures = ["effect", "prevalence", "mean_relative_abundance", "rank"]
    rates = ["q_associated", "q_conditional"]
    assert list(found) == [*measures, *rates, "stability", *folds]
    assert found["stability"].isin(np.arange(6) / 5).all()
    assert found["stability"].sum() == pytest.approx(20)
    planted = json.loads((study / "truth.json").read_text())["planted"]
    # The console and the page count both, each by its name.
    shown = f"{(found['q_associated'] < 0.1).sum()} of {len(found)} ASVs"
    assert f"{shown} are associated with 'response' (rank test, q < 0.1); " in printed
    assert " once the rest of the community is accounted for." in printed
    assert shown in (run / "report.html").read_text()
    # Each of the 20 explains a twentieth of the response: too little for a rate of 10 %.
    assert found["q_conditional"].nsmallest(10).index.isin(planted).mean() >= 0.4
    # The models of the folds share three quarters of their samples.
    assert found[folds].corr("spearman").to_numpy().min() > 0.4
    assert found["rank"].is_monotonic_increasing
    table = biom.load_table(str(study / "table.biom"))
    ids = list(table.ids("observation"))
    prevalence = (_features(table) > 0).mean(axis=0)
    assert found.loc[ids, "prevalence"].to_numpy() == pytest.approx(prevalence)
    assert found["mean_relative_abundance"].sum() == pytest.approx(1, rel=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("network", [False, True])
def test_a_run_ranks_asvs_by_the_samples_that_it_splits(
    study: Path, tmp_path: Path, network: bool
) -> None:
    """With a network shallow samples are left out, of the splits and of every member."""
    table = biom.load_table(str(study / "table.biom")).to_dataframe(dense=True).astype(int)
    table.iloc[:, :5] //= 10
    table.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    data = ("--table", tmp_path / "table.tsv", "--metadata", study / "metadata.tsv")
    given = ("--metadata-column", "ph", "--output-dir", tmp_path / "run", "--folds", 2)
    members = ("--members", "kernel", *(("transformer", *TINY) if network else ()))
    assert aam("train", *data, *given, *members, "--rarefy-depth", 500) == 0
    read = pd.read_csv(tmp_path / "run" / "splits.tsv", sep="\t")["sample-id"].unique()
    deep = table.columns[table.sum() >= (500 if network else 0)]
    assert set(read) == set(deep)
    assert (len(deep) < 120) == network
    found = _read(tmp_path / "run" / "importance.tsv")
    prevalence = (table[read] > 0).mean(axis=1)
    assert found["prevalence"].to_dict() == pytest.approx(
        prevalence[prevalence > 0].to_dict(), rel=1e-6
    )


@pytest.mark.medium
def test_permutation_finds_planted_asvs(run: Path, study: Path, tmp_path: Path) -> None:
    """Of the first 20 ASVs 11 are planted."""
    args = ("--method", "permutation", "--first", 60)
    assert _importance(study, run, tmp_path / "i.tsv", *args) == 0
    found = _read(tmp_path / "i.tsv")
    assert _planted_among_first(study, found) >= 0.4
    assert found["permutation"].notna().sum() == 60
    assert found["permutation"][:60].is_monotonic_decreasing
    assert found["rank"].is_monotonic_increasing


@pytest.mark.medium
def test_reads_are_permuted_within_groups_only(run: Path, study: Path, tmp_path: Path) -> None:
    """The site of a subject is constant; in a group of one sample nothing can change."""
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str)
    metadata["own"] = ["categorical", *metadata["sample-id"][1:]]
    metadata.to_csv(tmp_path / "m.tsv", sep="\t", index=False)

    def permutation(*args: object) -> pd.Series:
        fixed = ("--method", "permutation", "--first", 5, "--overwrite")
        assert _importance(study, run, tmp_path / "i.tsv", *fixed, *args) == 0
        return _read(tmp_path / "i.tsv")["permutation"][:5].sort_index()

    given = ("--metadata", tmp_path / "m.tsv", "--group-column")
    assert (permutation(*given, "own") == 0).all()
    among_all = permutation()
    assert (among_all > 0).all()
    assert 0 < permutation(*given, "subject").sum() < among_all.sum()
    status = _importance(study, run, tmp_path / "x.tsv", "--group-column", "own")
    assert status == UsageError.status  # groups are of the metadata, which are missing


@pytest.mark.slow
@pytest.mark.nightly
def test_networks_find_planted_asvs_by_integrated_gradients(study: Path, tmp_path: Path) -> None:
    """Of the first 20 ASVs 6 are planted, by networks of half of the samples (R2 0.19)."""
    args = ("--folds", 2, "--epochs", 60, "--lr", 0.003, "--batch-size", 16, "--rarefy-depth", 0)
    assert train_network(study, tmp_path / "net", *args, column="response") == 0
    assert "transformer_effect" in _read(tmp_path / "net" / "importance.tsv")
    assert _importance(study, tmp_path / "net", tmp_path / "i.tsv") == 0
    found = _read(tmp_path / "i.tsv")
    assert _planted_among_first(study, found) >= 0.2
    assert next(iter(found)) == "transformer_effect"
    folds = found[["rank_fold_1", "rank_fold_2"]]
    assert folds.corr("spearman").to_numpy()[0, 1] > 0
    args = ("--method", "permutation", "--first", 20, "--overwrite")
    assert _importance(study, tmp_path / "net", tmp_path / "i.tsv", *args) == 0
    assert (_read(tmp_path / "i.tsv")["permutation"][:20] > 0).all()


@pytest.mark.medium
def test_effects_follow_the_simulated_niches(study: Path, tmp_path: Path) -> None:
    """The first 20 ASVs rise with pH where their niche is above its mean, and fall below it."""
    folder = _train(study, tmp_path / "ph", "ph")
    assert _importance(study, folder, tmp_path / "i.tsv") == 0
    found = _read(tmp_path / "i.tsv")
    assert found["forest"].sum() == pytest.approx(1)
    # The forest has the weight 0, so the model's ASVs are the kernel's.
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["weights"]["model"]["forest"] == 0
    assert found["effect"].abs().is_monotonic_decreasing
    first = found[:20]
    truth = json.loads((study / "truth.json").read_text())
    mean = np.mean(list(truth["gradient_ph"].values()))
    side = np.array([truth["niches_ph"][name][0] > mean for name in first.index])
    assert ((first["effect"] > 0).to_numpy() == side).mean() >= 0.8


@pytest.mark.parametrize("clade_scale", [0.0, 0.7])
@pytest.mark.parametrize("gamma", [0.0, 0.02])
@pytest.mark.parametrize(
    ("classes", "transform"),
    [((), "none"), ((), "log-zscore"), (("a", "b"), "none"), (("a", "b", "c"), "none")],
)
def test_effects_are_the_exact_derivatives(
    classes: tuple[str, ...], transform: TransformName, gamma: float, clade_scale: float
) -> None:
    """Against differences of predictions, one feature of one sample changed at a time."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 5, size=(9, 12), dtype=np.uint8)
    counts = sparse.csr_array(rng.integers(1, 50, (14, 9)) * (rng.random((14, 9)) < 0.6))
    samples, relations = Samples(counts[:, :7], tokens[:7]), AsvRelations(tokens[2:])
    reference = relations.tokens_FL
    trained = Kernel().read(Samples(counts[:, 2:], reference), relations)
    terms = KernelTerms(trained.dendrogram, clade_scale) if clade_scale else KernelTerms()
    number = len(classes) or 1
    model = KernelModel(
        Landmarks.of(trained.with_features(terms), np.arange(14)),
        gamma,
        rng.standard_normal((14, number)) * (0.5 if gamma else 0.005),
        np.zeros(number),
        rng.standard_normal((number + 1, number)) if classes else np.empty((0, 0)),
        terms,
        limits=np.empty(0),
    )
    inputs = Kernel().read(samples, relations)

    to_reference = similarity(mismatches(samples.tokens_FL, reference)).astype(np.float64)
    own = similarity(mismatches(samples.tokens_FL, samples.tokens_FL)).astype(np.float64)

    def outputs(weights: F64) -> F64:
        norms = np.einsum("nu,uv,nv->n", weights, own, weights)
        parts = sparse.csr_array(weights), weights @ to_reference, norms, inputs.nearest
        found = model.predict(KernelInputs(*parts))
        if not classes:
            return TRANSFORMS[transform].inverse(found)
        logs: F64 = np.log(found)
        return logs[:, 1:] - logs[:, :1] if len(classes) == 2 else logs - logs.mean(1)[:, None]

    weights = inputs.weights.toarray().astype(np.float64)
    effects = []
    for asv in range(7):
        step = np.zeros_like(weights)
        step[:, asv] = 1e-4
        gradients = (outputs(weights + step) - outputs(weights - step)) / 2e-4
        effects.append(gradients[weights[:, asv] > 0].mean(axis=0) * weights[:, asv].std())
    expected = np.array(effects)
    target = Outputs("y", classes, TargetScale(transform))
    columns = model.importance(inputs, samples.tokens_FL, relations, target).columns
    found = np.column_stack(list(columns.values()))
    assert np.abs(expected).max() > 1e-3
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("classes", [(), ("a", "b", "c")])
def test_impurity_decrease_is_that_of_scikit_learn(classes: tuple[str, ...]) -> None:
    """Without bootstrap the samples of the nodes are known, and the figures are equal."""
    rng = np.random.default_rng(0)
    dense = rng.random((60, 15), dtype=np.float32) * (rng.random((60, 15)) < 0.5)
    abundances = sparse.csr_array(dense)
    values = rng.integers(0, 3, 60) if classes else rng.random(60)
    kind = RandomForestClassifier if classes else RandomForestRegressor
    forest = kind(10, max_features=0.3, bootstrap=False, random_state=0)
    forest.fit(as_csc(abundances), values)
    model = model_of(forest, Labels.of(values.astype(np.float64), classes, None), np.arange(15))
    found = model.impurity_decrease(ForestInputs(abundances))
    assert found == pytest.approx(forest.feature_importances_)


@pytest.mark.medium
def test_taxonomy_is_joined_and_qiime_2_reads_the_table(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = list(biom.load_table(str(study / "table.biom")).ids("observation"))
    lines = [f"{name}\tk__Bacteria; g__G{k}\t0.9" for k, name in enumerate(ids[:-3])]
    text = "\n".join(["Feature ID\tTaxon\tConfidence", *lines]) + "\n"
    plain = tmp_path / "taxonomy.tsv"
    plain.write_text(text)
    files = {"taxonomy.tsv": text.encode()}
    artifact = write_artifact(tmp_path / "t.qza", "FeatureData[Taxonomy]", files)
    for taxonomy in (plain, artifact):
        output = tmp_path / "i.tsv"
        assert _importance(study, run, output, "--taxonomy", taxonomy, "--overwrite") == 0
        assert f"3 of {len(ids)} ASVs are not in the taxonomy." in capsys.readouterr().err
        found = _read(output)
        assert found.loc[ids[4], "taxon"] == "k__Bacteria; g__G4"
        assert found["taxon"].isna().sum() == 3
    columns = SampleMetadata.load(str(output)).columns
    assert {name: column.type for name, column in columns.items()} == {
        "taxon": "categorical",
        **dict.fromkeys(found.columns[1:], "numeric"),
    }


@pytest.mark.medium
def test_training_names_the_asvs_by_the_taxonomy_that_it_checked_first(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--members", "kernel", "--taxonomy")
    folder = _train(study, tmp_path / "run", "ph", *args, study / "taxonomy.tsv")
    taxa = read_taxonomy(study / "taxonomy.tsv")
    found = _read(folder / "importance.tsv")
    assert found["taxon"].to_dict() == {name: taxa[name] for name in found.index}
    first = named_ranks(found["taxon"].iloc[0])[-1]
    assert first.startswith("g__Genus-")
    assert f"1. {first}" in html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    data = ("--table", study / "table.biom", "--metadata", study / "metadata.tsv")
    new = ("--metadata-column", "ph", "--output-dir", tmp_path / "new")
    for content in ("sample\tsex\nS1\tf\n", "Feature ID\tTaxon\nACGT\tk__Bacteria\n"):
        (tmp_path / "bad.tsv").write_text(content)
        assert aam("train", *data, *new, *args, tmp_path / "bad.tsv") == DataError.status
        assert "axonomy" in capsys.readouterr().err.splitlines()[-1]
        assert not (tmp_path / "new").exists()


@pytest.mark.medium
def test_python_returns_the_table(run: Path, study: Path, tmp_path: Path) -> None:
    assert _importance(study, run, tmp_path / "i.tsv") == 0
    table = biom.load_table(str(study / "table.biom"))
    frame = table.to_dataframe(dense=True).T.astype(int)
    taxa = {str(table.ids("observation")[0]): "k__Bacteria"}
    found = api.load(run).importance(frame, taxonomy=taxa)
    assert (found.pop("taxon") == "k__Bacteria").sum() == 1
    pd.testing.assert_frame_equal(found, _read(tmp_path / "i.tsv"))


@pytest.mark.medium
def test_bad_input_is_refused(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "i.tsv"

    def refused(error: type[DataError | MissingInput], model: Path, *args: object) -> str:
        assert _importance(study, model, output, *args) == error.status
        assert not output.exists()
        return capsys.readouterr().err

    other = tmp_path / "other.tsv"
    other.write_text("Feature ID\tTaxon\nACGT\tk__Bacteria\n")
    message = refused(DataError, run, "--taxonomy", other)
    assert "no ASV in common" in message
    for text, reason in (
        ("", "Not a taxonomy"),
        ("sample\tsex\nS1\tf\n", "Not a taxonomy"),
        ("Feature ID\tTaxon\nACGT\n", "line 2"),
        ("Feature ID\tTaxon\nA\tb\nA\tc\n", "two taxa"),
    ):
        other.write_text(text)
        assert reason in refused(DataError, run, "--taxonomy", other)
    refused(MissingInput, tmp_path / "absent")
    unknown = tmp_path / "unknown.tsv"
    unknown.write_text(f"#OTU ID\tS1\tS2\n{'ACGT' * 15}\t5\t6\n{'TTGA' * 15}\t1\t0\n")
    args = ("--table", unknown, "--model", run, "--output", output)
    assert aam("importance", *args) == DataError.status
    assert "no ASV of the model's training data" in capsys.readouterr().err
    assert pretrain(study, tmp_path / "encoder", "--tree", study / "tree.nwk") == 0
    capsys.readouterr()
    assert "no target" in refused(DataError, tmp_path / "encoder")


@pytest.mark.medium
def test_importance_of_many_samples_is_a_mean_over_a_part_of_them(run: Path, study: Path) -> None:
    loaded = api.load(run).loaded
    assert isinstance(loaded, TrainedModel)
    data = load_study(TableOptions(table=study / "table.biom"))
    room = 4 * 60 * len(loaded.tokens_FL)
    every, part = (
        importance_table(loaded, data, dense_bytes=number).set_index("feature-id")
        for number in (2 * room, room)
    )
    # Of 120 samples 60 are drawn; prevalence and abundance are of all.
    assert not part["effect"].equals(every["effect"].loc[part.index])
    assert part["effect"].corr(every["effect"]) > 0.9
    assert part["prevalence"].equals(every["prevalence"].loc[part.index])


@pytest.mark.medium
def test_report_shows_the_first_asvs_or_the_command(run: Path, study: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))

    def report() -> str:
        assert aam("report", "--run-dir", folder) == 0
        return html.unescape((folder / "report.html").read_text(encoding="utf-8"))

    (folder / "importance.tsv").unlink()
    page = report()
    assert "ASVs by importance" not in page
    command = re.search(r"aam (importance [^<\n]*)", page)
    assert command is not None
    assert aam(*shlex.split(command[1])) == 0
    page = report()
    assert "ASVs by importance" in page
    assert "aam importance --table" not in page
    first = _read(folder / "importance.tsv").iloc[0]
    assert f"1. {hashlib.md5(first.name.encode()).hexdigest()}"[:11] in page
    assert f"{first['effect']:+.3g}" in page
    assert re.search(r"Two of 5 folds share \d+\.\d of their first 20 ASVs on average", page)
    assert "Folds: number of folds with the ASV among the first 20." in page
    assert "5 of 5" in page
    assert re.search(r"\d+ of \d+ ASVs are associated with 'response'", page)
    taxonomy = tmp_path / "taxonomy.tsv"
    taxonomy.write_text(f"Feature ID\tTaxon\n{first.name}\tk__Bacteria; f__F; g__G; s__\n")
    output = folder / "importance.tsv"
    assert _importance(study, folder, output, "--taxonomy", taxonomy, "--overwrite") == 0
    assert "1. g__G " in report()
    (folder / "importance.tsv").write_text("sample-id\tx\nS1\t2\n")
    assert aam("report", "--run-dir", folder) == DataError.status


@pytest.mark.medium
def test_asvs_are_tested_at_equal_depth_where_depth_follows_the_target(tmp_path: Path) -> None:
    """Without any association; all reads would name half of the ASVs. A model keeps the depth."""
    rng = np.random.default_rng(4)
    counts, labels, _ = simulated(rng, "two", 1.5, 0.9, 0)
    ids = ["".join(rng.choice(list("ACGT"), 40)) for _ in range(counts.shape[1])]
    samples = [f"S{row}" for row in range(counts.shape[0])]
    table = pd.DataFrame(counts.T.toarray(), pd.Index(ids, name="feature-id"), samples)
    table.to_csv(tmp_path / "table.tsv", sep="\t")
    classes = ["case" if code else "control" for code in labels.values]
    metadata = pd.DataFrame({"sample-id": samples, "class": classes})
    metadata.to_csv(tmp_path / "metadata.tsv", sep="\t", index=False)
    inputs, run = (tmp_path / "table.tsv", tmp_path / "metadata.tsv"), tmp_path / "run"
    given = ("class", "--members", "kernel", "--folds", 2, "--repeats", 1, "--output-dir", run)
    assert aam("train", *inputs, *given) == 0
    said = "The sequencing depth differs with 'class'"
    assert said in html.unescape((run / "report.html").read_text())
    found = _read(run / "importance.tsv")
    assert (found["depth_associated"] == found["depth_associated"].iloc[0]).all()
    assert 0 < found["depth_associated"].iloc[0] < counts.sum(axis=1).mean()
    assert (found["q_associated"] < 0.1).sum() <= 2
    output = tmp_path / "again.tsv"
    assert aam("importance", "--table", inputs[0], "--model", run, "--output", output) == 0
    assert _read(output)["q_associated"].to_dict() == found["q_associated"].to_dict()


@pytest.mark.medium
def test_taxa_that_the_disease_changes_in_every_study_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Joined studies, leaving one out: associations.tsv, the report and Python have the truth.

    The column `cohort` is another name of the study, and `noise` adjusts for nothing.
    """
    example = ("--studies", 4, "--samples", 150, "--asvs", 150, "--length", 60, "--seed", 3)
    assert aam("example", "--output-dir", tmp_path / "s", *example) == 0
    chosen, joined, run = ("a", "b", "d"), tmp_path / "joined", tmp_path / "run"
    for name in chosen:
        path = tmp_path / "s" / name / "metadata.tsv"
        head, types, *rows = path.read_text().splitlines()
        rows = [f"{row}\tcohort {name}\t{37 * k % 101}" for k, row in enumerate(rows)]
        lines = [f"{head}\tcohort\tnoise", f"{types}\tcategorical\tnumeric", *rows]
        path.write_text("\n".join(lines) + "\n")
    files = [("--table", tmp_path / "s" / name / "table.biom") for name in chosen]
    files += [("--metadata", tmp_path / "s" / name / "metadata.tsv") for name in chosen]
    flat = [word for pair in files for word in pair]
    assert aam("prepare", *flat, "--studies", ",".join(chosen), "--output", joined) == 0
    target = ("--metadata-column", "disease", "--classifier", "--study-column", "cohort")
    target = (*target, "--adjust-for", "noise")
    given = ("--table", joined, "--metadata", joined, "--members", "kernel", "--output-dir", run)
    capsys.readouterr()
    assert aam("train", *given, *target, "--taxonomy", tmp_path / "s/taxonomy.tsv") == 0
    assert "The samples come from" not in capsys.readouterr().err
    found = pd.read_csv(run / "associations.tsv", sep="\t", index_col="feature")
    taxa = found[found["kind"] == "taxon"].copy()
    taxa.index = taxa.index.str.split("; ").str[-1]
    truth = json.loads((tmp_path / "s/truth.json").read_text())["disease"]
    shared = set.intersection(*(set(truth[name]) for name in chosen)) & set(taxa.index)
    assert shared
    for genus in shared:
        row = taxa.loc[genus]
        # Of case and control the first is positive.
        assert row["class"] == "case"
        assert np.sign(row["z"]) == np.sign(truth["a"][genus])
        assert row["agreeing"] == row["studies"] == 3
        assert row["q"] < 0.1
        assert row["z_adjusted"] == pytest.approx(row["z"], abs=1.5)
        assert (
            np.sign(row[[f"z_cohort {name}" for name in chosen]].astype(float)) == np.sign(row["z"])
        ).all()
    asvs = found[found["kind"] == "ASV"]
    assert asvs["rank"].notna().all()
    assert (asvs["studies"] >= 2).all()
    assert asvs["p"].is_monotonic_increasing
    page = (run / "report.html").read_text()
    assert "ASVs associated within the studies" in page
    assert "Taxa associated within the studies" in page
    assert ">z adjusted</th>" in page and ">adjusted</th>" not in page
    of_python = api.load(run).results().associations
    assert of_python is not None
    assert of_python["q"].tolist() == pytest.approx(found["q"].tolist())
