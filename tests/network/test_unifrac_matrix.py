"""UniFrac matrices: tiles, torch and ssu, and the command that writes them."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import biom
import h5py
import numpy as np
import pytest
import rich
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aam.cli import main
from aam.contract.errors import Unavailable
from aam.contract.options.groups import Metric
from aam.data.distances import read_distances
from aam.data.formats.newick import parse
from aam.data.phylogeny import read_phylogeny
from aam.data.table import FeatureTable, read_table
from aam.network.unifrac import faith_pd, newick, pairwise, unifrac_matrix
from tests.network.test_unifrac import ALPHAS, DISTANCES, phylogeny_of
from tests.support.trees import Case, cases, random_case


@pytest.fixture
def ssu() -> None:
    if shutil.which("ssu") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("ssu is to be installed in CI (Debian: unifrac-tools)")
        pytest.skip("ssu is not installed")


def table_of(case: Case) -> FeatureTable:
    samples = tuple(f"s'{n}" for n in range(len(case.counts)))
    return FeatureTable(samples, tuple(case.features), case.table)


@settings(deadline=None)
@given(cases(), st.sampled_from(DISTANCES), ALPHAS)
def test_a_matrix_equals_a_batch_of_all_samples(case: Case, metric: Metric, alpha: float) -> None:
    phylogeny = phylogeny_of(case)
    expected = pairwise(case.table, phylogeny, metric, alpha)
    found = unifrac_matrix(table_of(case), phylogeny, metric, alpha)
    scale = max(1.0, float(phylogeny.lengths_G.sum()))
    np.testing.assert_allclose(found.values, expected, atol=1e-12 * scale)


@pytest.mark.medium
@pytest.mark.parametrize("metric", DISTANCES)
def test_several_tiles_equal_a_batch_of_all_samples(metric: Metric) -> None:
    case = random_case(150, 550, 15, seed=1)  # two blocks of samples, three tiles
    phylogeny, table = phylogeny_of(case), table_of(case)
    expected = pairwise(case.table, phylogeny, metric)
    # As on a GPU, all branches are dense on a device of another name.
    given = (("cpu", 0), ("cpu", 1 << 30), ("cpu:0", 1 << 30))
    found = [
        unifrac_matrix(table, phylogeny, metric, 0.5, "torch", max_bytes, device).values
        for device, max_bytes in given
    ]
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(each, each.T)
        assert not each.diagonal().any()
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("metric", DISTANCES)
def test_equal_samples_are_at_distance_zero(metric: Metric) -> None:
    case = random_case(150, 20, 40, seed=2)
    case.counts[10:] = case.counts[:10]
    found = unifrac_matrix(table_of(case), phylogeny_of(case), metric).values
    assert np.abs(found.diagonal(10)).max() < 1e-15


def test_faith_pd_of_more_samples_than_a_tile() -> None:
    case = random_case(60, 600, 20, seed=2)
    phylogeny = phylogeny_of(case)
    parts = [faith_pd(case.table[rows], phylogeny) for rows in np.array_split(np.arange(600), 3)]
    np.testing.assert_allclose(faith_pd(case.table, phylogeny), np.concatenate(parts))


@pytest.mark.usefixtures("ssu")
@pytest.mark.parametrize("metric", DISTANCES)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_ssu_agrees(metric: Metric, alpha: float) -> None:
    # A stem and an empty sample included; names hold quotes, which ssu refuses in a tree.
    case = random_case(80, 12, 25, seed=3)
    case.counts[4] = 0
    phylogeny, table = phylogeny_of(case), table_of(case)
    ours = unifrac_matrix(table, phylogeny, metric, alpha, "torch").values
    theirs = unifrac_matrix(table, phylogeny, metric, alpha, "ssu").values
    # ssu reads branch lengths as float32.
    np.testing.assert_allclose(theirs, ours, rtol=1e-7, atol=1e-7)


@settings(deadline=None)
@given(cases())
def test_a_written_phylogeny_is_read_unchanged(case: Case) -> None:
    phylogeny = phylogeny_of(case)
    names = [f"f{column}" for column in range(len(case.features))]
    written = newick(phylogeny)
    tree = parse(written.encode(), "the written tree")
    # Without some tips the root may have three branches; such a tree is refused as not rooted.
    assume(np.count_nonzero(tree.parents == tree.parents.size - 1) <= 2)
    again = phylogeny_of(Case(written, names, case.counts))
    np.testing.assert_array_equal(again.indices, phylogeny.indices)
    np.testing.assert_array_equal(again.indptr, phylogeny.indptr)
    np.testing.assert_array_equal(again.lengths_G, phylogeny.lengths_G)


@pytest.fixture
def fake_ssu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of PATH but the shell's own folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder / "ssu"


def test_absent_and_failed_ssu_are_reported_with_a_remedy(fake_ssu: Path) -> None:
    case = random_case(10, 3, 5, seed=4)
    with pytest.raises(Unavailable, match="choose --engine torch") as caught:
        unifrac_matrix(table_of(case), phylogeny_of(case), "unweighted", engine="ssu")
    assert caught.value.status == 69
    fake_ssu.write_text("#!/bin/sh\necho 'no licence to compute' >&2\nexit 3\n")
    fake_ssu.chmod(0o755)
    with pytest.raises(Unavailable, match="its last line is 'no licence to compute'"):
        unifrac_matrix(table_of(case), phylogeny_of(case), "unweighted", engine="ssu")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder with table.biom and tree.nwk; the tree also holds what the table does not."""
    case = random_case(50, 8, 12, seed=5)
    (tmp_path / "tree.nwk").write_text(case.newick)
    samples = [f"s{n}" for n in range(len(case.counts))]
    with h5py.File(tmp_path / "table.biom", "w") as file:
        biom.Table(case.counts.T.astype(float), case.features, samples).to_hdf5(file, "a test")
    return tmp_path


def run(study: Path, output: str, *more: str) -> int:
    args = ["--table", "table.biom", "--tree", "tree.nwk", "--output", output]
    paths = [str(study / word) if "." in word else word for word in args]
    return main(["unifrac", *paths, "--device", "cpu", *more])


@pytest.mark.parametrize(
    ("output", "metric"), [("m.tsv", "unifrac"), ("m.npy", "weighted"), ("m.h5", "generalized")]
)
def test_the_command_writes_the_matrix(study: Path, output: str, metric: Metric) -> None:
    assert run(study, output, "--unifrac-metric", metric) == 0
    table = read_table(study / "table.biom")
    phylogeny, _ = read_phylogeny(study / "tree.nwk", table.feature_ids)
    found = read_distances(study / output)
    assert found.ids == table.sample_ids
    expected = pairwise(table.counts, phylogeny, metric)
    np.testing.assert_allclose(found.values, expected, rtol=2e-6, atol=1e-6)


def test_the_command_writes_faith_pd(study: Path) -> None:
    assert run(study, "faith.tsv", "--unifrac-metric", "faith_pd") == 0
    table = read_table(study / "table.biom")
    phylogeny, _ = read_phylogeny(study / "tree.nwk", table.feature_ids)
    header, *rows = (study / "faith.tsv").read_text().splitlines()
    assert header == "sample-id\tfaith_pd"
    assert tuple(row.split("\t")[0] for row in rows) == table.sample_ids
    found = [float(row.split("\t")[1]) for row in rows]
    np.testing.assert_allclose(found, faith_pd(table.counts, phylogeny), rtol=1e-8)


@pytest.mark.parametrize(
    ("output", "more", "status", "sentence"),
    [
        ("m.xlsx", [], 64, "end its name with one of .tsv, .lsmat, .npy, .h5"),
        ("m.h5", ["--unifrac-metric", "faith_pd"], 64, "Faith PD is written as TSV"),
        (
            "m.tsv",
            ["--unifrac-metric", "faith_pd", "--engine", "ssu"],
            64,
            "--engine ssu with --unifrac-metric faith_pd",
        ),
        ("m.tsv", ["--unifrac-alpha", "1.5"], 64, "give 0 to 1 for --unifrac-alpha"),
        ("tree.nwk/m.tsv", [], 73, "The folder cannot be created"),
    ],
)
def test_the_command_refuses_invalid_options(
    study: Path,
    output: str,
    more: list[str],
    status: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(study, output, *more) == status
    assert sentence in capsys.readouterr().err


def test_the_command_overwrites_only_with_the_option(study: Path) -> None:
    assert run(study, "m.npy") == 0
    assert run(study, "m.npy") == 73
    (study / "m.npy").unlink()
    assert run(study, "m.npy") == 73, "the ids beside it are a file too"
    assert run(study, "m.npy", "--overwrite") == 0


def test_the_command_leaves_out_samples_only_with_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tree.nwk").write_text("((a:1,b:2):1,c:1);")
    lines = "#OTU ID\ts1\ts2\ts3\na\t1\t0\t2\nb\t3\t0\t0\nx\t1\t5\t0\n"
    (tmp_path / "table.biom").write_text(lines)
    assert run(tmp_path, "m.tsv") == 65
    assert "1 (x) of 3 are absent" in capsys.readouterr().err
    assert run(tmp_path, "m.tsv", "--drop-missing-asvs") == 65
    assert "Samples without an ASV of the tree: 1 (s2)" in capsys.readouterr().err
    assert run(tmp_path, "m.tsv", "--drop-missing-asvs", "--drop-empty-samples") == 0
    assert read_distances(tmp_path / "m.tsv").ids == ("s1", "s3")


PACKAGE = """
import sys
sys.path.append(sys.argv[1])  # after the packages of this Python, which fit its unifrac
import numpy as np
from scipy import sparse
from aam.data.phylogeny import Phylogeny
from aam.network.unifrac import run_package

given = np.load("given.npz")
phylogeny = Phylogeny(given["lengths_G"], given["indptr"], given["indices"])
counts = sparse.csr_array(given["counts"])
found = {m: run_package(counts, phylogeny, m, 0.5) for m in sys.argv[2:]}
np.savez("found.npz", **found)
"""


@pytest.fixture(scope="module")
def python_with_unifrac() -> str:
    """A Python that can import the package unifrac: this one, or Debian's with python3-unifrac."""
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, "-c", "import unifrac"]
        if Path(python).exists() and not subprocess.run(command, capture_output=True).returncode:
            return python
    pytest.skip("no Python here can import unifrac")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("ssu")
def test_the_package_unifrac_agrees(python_with_unifrac: str, tmp_path: Path) -> None:
    case = random_case(80, 12, 25, seed=3)
    case.counts[4] = 0
    phylogeny, table = phylogeny_of(case), table_of(case)
    np.savez(tmp_path / "given.npz", **vars(phylogeny), counts=case.counts)
    packages = Path(rich.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [python_with_unifrac, "-c", PACKAGE, str(packages), *DISTANCES]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    for metric in DISTANCES:
        for engine in ("torch", "ssu"):
            other = unifrac_matrix(table, phylogeny, metric, 0.5, engine).values
            np.testing.assert_allclose(found[metric], other, rtol=1e-6, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_package_unifrac_reads_our_matrix(
    python_with_unifrac: str, study: Path, tmp_path: Path
) -> None:
    assert run(study, "m.h5") == 0
    script = (
        "import sys, unifrac, numpy; m = unifrac.h5unifrac(sys.argv[1]); "
        "numpy.save(sys.argv[2], m.data); print(*m.ids)"
    )
    command = [python_with_unifrac, "-c", script, str(study / "m.h5"), str(tmp_path / "m.npy")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = read_distances(study / "m.h5")
    assert tuple(done.stdout.split()) == ours.ids
    np.testing.assert_allclose(np.load(tmp_path / "m.npy"), ours.values, atol=1e-6)


def test_an_absent_package_unifrac_is_reported_with_a_remedy(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(ImportError, ValueError):
        importlib.import_module("unifrac")
        pytest.skip("unifrac is installed")
    assert run(study, "m.tsv", "--engine", "unifrac") == Unavailable.status
    printed = " ".join(capsys.readouterr().err.split())
    assert "The Python package 'unifrac' cannot be imported: --engine unifrac, No module" in printed
    assert "conda install bioconda::unifrac" in printed
    assert not (study / "m.tsv").exists()
