"""`aam importance --attention` and `--clades`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.image import imread

from aam.contract.errors import DataError, UsageError
from aam.contract.options.groups import TableOptions
from aam.data.study import load_study
from aam.members.importance import clade_table
from aam.network.batches import FixedBatches
from aam.network.inference.stored_networks import read_networks
from aam.network.model.network import Predictor
from tests.support.commands import aam, read, train

LEARNT = ("--epochs", 3, "--lr", 0.02, "--rarefy-depth", 0)


@pytest.fixture(scope="module")
def run(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    assert train(study_dir, folder, *LEARNT) == 0
    return folder


def importance(study_dir: Path, run: Path, output: Path, *args: object) -> int:
    table = ("--table", study_dir / "table.biom", "--model", run, "--output", output)
    return aam("importance", *table, *args)


@pytest.mark.medium
def test_attention_of_a_sample_is_that_of_the_network_in_a_batch(
    run: Path, study_dir: Path, tmp_path: Path
) -> None:
    """The network computes it for all samples at once, with masks and torch's own attention."""
    table = TableOptions(table=study_dir / "table.biom")
    taxonomy = tmp_path / "taxonomy.tsv"
    stored = read_networks(run)[0]
    config = stored.config
    study = load_study(table, max_bp=config.shape.max_bp)
    names = study.table.feature_ids
    lines = [f"{name}\tk__Bacteria; g__G{k}" for k, name in enumerate(names)]
    taxonomy.write_text("\n".join(["Feature ID\tTaxon", *lines]) + "\n")
    network = stored.build().eval()
    assert isinstance(network, Predictor)
    row, sample = 7, study.table.sample_ids[7]
    args = ("--attention", sample, "--taxonomy", taxonomy)
    assert importance(study_dir, run, tmp_path / "a.tsv", *args) == 0
    found = read(tmp_path / "a.tsv")
    assert found["attention"].sum() == pytest.approx(1)
    assert found["attention"].is_monotonic_decreasing
    batch = FixedBatches(study, config.plan, np.arange(36), 36)[0]
    with torch.no_grad():
        vectors_UD = network.encoder.nucleotides(batch.tokens_UL, True)[0]
        inputs = (batch.slots_BS, batch.counts_BS, batch.attend_BS)
        _, hidden_BSD = network.encoder.samples(vectors_UD, *inputs)
        mixed_BSD = network.transformer(hidden_BSD, batch.attend_BS)
        score_S = network.pooling.score(mixed_BSD)[row, :, 0]
    present_S = batch.counts_BS[row] > 0
    weights = score_S[present_S].softmax(dim=0).numpy()
    asvs = batch.asvs_U[batch.slots_BS[row]][present_S].tolist()
    expected = pd.Series(weights, [names[asv] for asv in asvs])
    assert set(found["feature-id"]) == set(expected.index)
    np.testing.assert_allclose(found["attention"], expected[found["feature-id"]], rtol=1e-4)
    assert found["attention"].std() > 1e-4  # the network distinguishes ASVs
    k = list(names).index(found["feature-id"][0])
    assert found["taxon"][0] == f"k__Bacteria; g__G{k}"
    picture = imread(tmp_path / "a.png")
    assert picture.shape[0] > 300 and picture[..., :3].std() > 0.05


@pytest.mark.medium
def test_attention_that_does_not_exist_is_refused(
    run: Path, study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = tmp_path / "kernel"
    args = ("--members", "kernel", "--folds", 2, "--rarefy-depth", 0)
    assert train(study_dir, kernel, *args) == 0
    capsys.readouterr()
    for model, sample, cause in (
        (run, "no such", "The table has no such sample"),
        (kernel, "S01", "The model has no attention: its members are kernel"),
    ):
        output = tmp_path / "a.tsv"
        assert importance(study_dir, model, output, "--attention", sample) == DataError.status
        assert cause in " ".join(capsys.readouterr().err.split())
    args = ("--clades", tmp_path / "c.tsv")
    both = (*args, "--taxonomy", study_dir / "metadata.tsv", "--attention", "S01")
    for wrong in (args, both):
        assert importance(study_dir, run, tmp_path / "i.tsv", *wrong) == UsageError.status


def test_importance_is_summed_over_taxa() -> None:
    table = pd.DataFrame(
        {
            "feature-id": list("abcd"),
            "taxon": ["k__B; f__X; g__M", "k__B; f__X; g__N", "k__B; f__Y; g__", ""],
            "effect": [1.0, 0.5, -3.0, 9.0],
            "permutation": [0.5, np.nan, 0.7, np.nan],
            "forest": [0.1, 0.2, 0.4, 0.3],
            "prevalence": [1.0, 1.0, 1.0, 1.0],
            "mean_relative_abundance": [0.4, 0.3, 0.2, 0.1],
            "rank": [1.0, 2.0, 3.0, 4.0],
        }
    )
    found = clade_table(table).set_index("taxon")
    assert set(found.index) == {
        "k__B", "k__B; f__X", "k__B; f__X; g__M", "k__B; f__X; g__N", "k__B; f__Y"
    }  # fmt: skip
    assert found.loc["k__B; f__X", ["level", "asvs", "effect", "forest"]].tolist() == [
        2, 2, 1.5, pytest.approx(0.3)
    ]  # fmt: skip
    assert found.loc["k__B", "effect"] == -1.5
    assert found.loc["k__B", "permutation"] == pytest.approx(1.2)  # of the first ASVs alone
    assert found.loc["k__B", "mean_relative_abundance"] == pytest.approx(0.9)
    assert found.index[:3].tolist() == ["k__B", "k__B; f__Y", "k__B; f__X"]  # by level
    with pytest.raises(DataError, match="No ASV has a taxon"):
        clade_table(table.assign(taxon=""))
