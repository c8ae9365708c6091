"""`aam predict --explain`: effects that add up to the prediction, of each member and of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import aam as api
from aam.arrays import F64
from aam.contract.errors import DataError
from aam.data.covariates import Covariates
from aam.data.targets import TargetScale
from aam.evaluation.labels import Labels, LabelSummary
from aam.members.explanations import explain
from aam.members.member import FittedModel, Outputs, estimator
from aam.members.model_file import ModelFacts, TrainedModel
from aam.members.new_samples import SummaryNumbers
from aam.members.relations import AsvRelations
from aam.members.samples import Samples
from tests.support.commands import aam
from tests.support.commands import train as train_network


def _samples(seed: int, covariates: bool = False) -> Samples:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 5, size=(12, 30), dtype=np.uint8)
    counts = rng.integers(1, 90, (60, 12)) * (rng.random((60, 12)) < 0.6)
    counts[:, 0] += 1
    columns = {"site": rng.choice(["gut", "skin"], 60)}, {"age": rng.normal(size=60)}
    ids = tuple(map(str, range(60)))
    known = Covariates(*columns) if covariates else None
    return Samples(sparse.csr_array(counts), tokens, known, ids)


def _explained(
    name: str, values: F64, samples: Samples, outputs: Outputs, new: Samples | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, FittedModel[object]]:
    """Fit a member to all samples, and explain its predictions of these or of new ones.

    Returns:
        Effects of each feature, a column each, 0 where a sample has none; and a row for each sample
        with prediction, mean, unit and remainder.
    """
    member, relations = estimator(name), AsvRelations(samples.tokens_FL)
    labels = Labels.of(outputs.scale.forward(values), outputs.classes, None)
    model = member.fit(member.read(samples, relations), labels, seed=0)
    of_new = samples if new is None else new
    predictions = outputs.scale.inverse(model.predict(member.read(of_new, relations)))
    means = np.tile(outputs.scale.inverse(labels.outputs_NC.mean(axis=0)), (60, 1))
    facts_of_model = ModelFacts(
        outputs.column, outputs.classes, (), outputs.scale.transform, outputs.scale.range,
        {name: 1.0}, None, 1.0, None, {}, SummaryNumbers(0, 0, 1, 1.0), (), LabelSummary.of(labels),
    )  # fmt: skip
    no_summary: Any = None  # explanations do not read it
    table = explain(
        TrainedModel(facts_of_model, {name: model}, relations, no_summary), of_new, predictions,
        {name: predictions}, means, [f"asv{k}" for k in range(len(of_new.tokens_FL))], first=99,
    )  # fmt: skip
    assert not (table["kind"] == "others").any()
    order = list(of_new.sample_ids)
    features = table[table["kind"].isin(["ASV", "metadata"])]
    effects = features.pivot_table("effect", "sample", "feature").reindex(order).fillna(0)
    by_sample = table.groupby("sample")
    facts = table.pivot_table("effect", "sample", "kind")[["mean", "remainder"]].reindex(order)
    facts = facts.assign(prediction=by_sample["effect"].sum(), unit=by_sample["unit"].first())
    assert facts["prediction"].to_numpy() == pytest.approx(predictions.max(axis=1), abs=1e-9)
    return effects, facts, model


@pytest.mark.parametrize("name", ["kernel", "forest"])
@pytest.mark.parametrize("target", ["number", "log", "covariates", "two", "three"])
def test_effects_add_up_and_name_the_planted_asv(name: str, target: str) -> None:
    samples = _samples(0, covariates=target == "covariates")
    signal = samples.log_abundances.toarray()[:, 3].astype(np.float64)
    if samples.covariates is not None:
        signal = signal + 3 * (samples.covariates.categories["site"] == "gut")
    classes = {"two": ("no", "yes"), "three": ("a", "b", "c")}.get(target, ())
    values = np.expm1(signal) if target == "log" else signal
    if classes:
        edges = np.quantile(signal, np.linspace(0, 1, len(classes) + 1)[1:-1])
        values = np.digitize(signal, edges).astype(np.float64)
    scale = TargetScale("log-zscore") if target == "log" else TargetScale()
    effects, facts, _ = _explained(name, values, samples, Outputs("y", classes, scale))
    # On the scale on which a member is additive the remainder is the same for all samples: the mean
    # sample less the mean label.
    rest = facts["remainder"].to_numpy()
    changes = (facts["prediction"] - facts["mean"]).to_numpy()
    ends, starts = (
        np.log(each) - (np.log1p(-each) if classes else 0) if target in ("log", "two") else each
        for each in (facts[name].to_numpy() + (target == "log") for name in ("prediction", "mean"))
    )
    if target != "three" and (name == "kernel" or not classes):
        signs = np.where(facts["unit"].str.endswith(" no"), -1, 1)
        large = np.abs(changes) > 0.05 * np.abs(changes).max()
        of_scale = signs[large] * (rest * (ends - starts) / changes)[large]
        assert np.ptp(of_scale) < 2e-3 * np.ptp(ends)
    assert np.abs(rest).mean() < 0.5 * np.abs(changes).mean()
    sizes = effects.abs().mean()
    assert sizes.drop(["site", "age"], errors="ignore").idxmax() == "asv3"
    if samples.covariates is not None:
        assert sizes["site"] > 3 * sizes["age"] > 0


def test_a_linear_kernel_has_no_remainder_and_effects_of_absent_asvs() -> None:
    samples = _samples(1)
    features = samples.log_abundances.toarray().astype(np.float64)
    values = features @ np.r_[2.0, -1.0, np.zeros(10)]
    effects, facts, model = _explained("kernel", values, samples, Outputs("y", (), TargetScale()))
    assert vars(model)["gamma"] == 0
    changes = (facts["prediction"] - facts["mean"]).abs()
    inside = changes < 0.9 * changes.max()  # others may be clipped
    assert facts["remainder"][inside].to_numpy() == pytest.approx(0, abs=1e-4)
    slope = np.polyfit(features[:, 0], effects["asv0"], 1)[0]
    assert slope == pytest.approx(2, rel=0.3)
    assert (effects["asv0"][features[:, 0] == 0] < 0).all()


@pytest.mark.parametrize("name", ["kernel", "forest"])
def test_asvs_that_the_training_lacks_have_effects_of_their_own(name: str) -> None:
    samples = _samples(2)
    values = samples.log_abundances.toarray()[:, 3].astype(np.float64)
    # Another order, without ASV 5, and an ASV that differs from ASV 3 by one nucleotide.
    relative = samples.tokens_FL[3].copy()
    relative[7] = relative[7] % 4 + 1
    order = np.r_[np.arange(11, 5, -1), np.arange(5)]
    tokens = np.vstack([samples.tokens_FL[order], relative])
    counts = samples.counts.toarray()
    counts = np.hstack([counts[:, order], counts[:, [5]]])
    new = Samples(sparse.csr_array(counts), tokens, sample_ids=samples.sample_ids)
    effects, facts, _ = _explained(name, values, samples, Outputs("y", (), TargetScale()), new)
    small = (facts["prediction"] - facts["mean"]).abs() < 1
    assert np.ptp(facts["remainder"][small]) < 2e-3
    lacked = "".join("ACGT"[code - 1] for code in samples.tokens_FL[5])
    assert lacked in effects
    assert ("asv11" in effects) == (name == "kernel")


@pytest.fixture(scope="module")
def run(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "response"
    status = aam(
        "train", "--table", study / "table.biom", "--metadata", study / "metadata.tsv",
        "--metadata-column", "response", "--output-dir", folder, "--rarefy-depth", 0,
    )  # fmt: skip
    assert status == 0
    return folder


@pytest.mark.medium
def test_predict_writes_the_planted_asvs_and_sums_them_by_taxon(
    run: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why, output = tmp_path / "why.tsv", tmp_path / "p.tsv"
    args = ("--table", study / "table.biom", "--model", run, "--output", output, "--explain", why)
    assert aam("predict", *args) == 0
    assert "S001, response: " in capsys.readouterr().err
    table = pd.read_csv(why, sep="\t")
    predicted = pd.read_csv(output, sep="\t", index_col="sample-id")["predicted"]
    sums = table.groupby("sample")["effect"].sum()
    assert sums.loc[predicted.index].to_numpy() == pytest.approx(predicted.to_numpy(), abs=1e-9)
    assert (table.groupby("sample")["kind"].value_counts().unstack()["ASV"] == 20).all()
    planted = json.loads((study / "truth.json").read_text())["planted"]
    first = table[table["kind"] == "ASV"].groupby("sample").head(3)
    assert first["feature"].isin(planted).mean() > 0.5  # by chance 0.07
    assert set(table["unit"]) == {"units of response"}
    taxa = ("--taxonomy", study / "taxonomy.tsv", "--overwrite")
    assert aam("predict", *args, *taxa) == 0
    by_taxon = pd.read_csv(why, sep="\t")
    assert by_taxon["kind"].value_counts().idxmax() == "taxon"
    same = by_taxon.groupby("sample")["effect"].sum()
    assert same.to_numpy() == pytest.approx(sums.to_numpy(), abs=1e-9)


@pytest.mark.medium
def test_training_explains_the_worst_held_out_samples(run: Path) -> None:
    table = pd.read_csv(run / "explanations.tsv", sep="\t")
    held_out = pd.read_csv(run / "predictions.tsv", sep="\t", index_col="sample-id")
    sums = table.groupby("sample")["effect"].sum()
    predicted = held_out.loc[sums.index, "predicted"]
    assert sums.to_numpy() == pytest.approx(predicted.to_numpy(), abs=1e-9)
    errors = (held_out["predicted"] - held_out["actual"]).abs()
    worst = table[table["group"] == "worst"]["sample"].unique()
    assert set(worst) == set(errors.nlargest(10).index)
    assert table[table["group"] == "typical"]["sample"].nunique() == 3
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Effects behind these predictions" in page


@pytest.mark.medium
def test_python_explains_one_sample_with_one_asv_and_markup_in_its_name(
    run: Path, study: Path
) -> None:
    asv = next(iter(json.loads((study / "truth.json").read_text())["planted"]))
    frame = pd.DataFrame([[9]], ["<script>[red]"], [asv])
    model = api.load(run)
    table = model.explain(frame, first=2)
    assert set(table["sample"]) == {"<script>[red]"}
    assert list(table["kind"]) == ["mean", "ASV", "ASV", "others", "remainder"]
    predicted = model.predict(frame)["predicted"].iloc[0]
    assert table["effect"].sum() == pytest.approx(predicted, abs=1e-9)
    with pytest.raises(DataError, match="No ASV of the table occurs"):
        model.explain(pd.DataFrame([[9]], ["a"], ["ACGT" * 15]))


@pytest.mark.nightly
@pytest.mark.slow
def test_networks_are_explained_by_integrated_gradients(study: Path, tmp_path: Path) -> None:
    """Of a number and of classes; the sum of the effects follows the prediction."""
    for column, args in (("ph", ()), ("site", ("--classifier",))):
        run = tmp_path / column
        status = train_network(study, run, "--epochs", 15, "--lr", 0.003, *args, column=column)
        assert status == 0
        model = api.load(run)
        table = model.explain(study / "table.biom", first=300)
        parts = table.pivot_table("effect", "sample", "kind", aggfunc="sum").fillna(0)
        sums, asvs = parts.sum(axis=1), parts["ASV"]
        found = model.predict(study / "table.biom").loc[sums.index]
        p = found[[name for name in found if name.startswith("p_")]].max(axis=1)
        expected = p if args else found["predicted"]
        assert sums.to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-5)
        # What remains is the prediction of a sample of mean ASVs, which varies less.
        assert np.std(parts["remainder"]) < np.std(asvs)
