"""Small simulated studies, made once a session and shared by the tests that train."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from aam.contract.options.commands.studies import Example
from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.simulation import simulate, write_study
from aam.data.study import Study, load_study

with suppress(ModuleNotFoundError):  # the study is tested without PyTorch, too
    import torch

    torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)  # no test measures time
settings.load_profile("untimed")
# A shell without job control starts background processes with SIGINT ignored; children inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


SHARED = ("AAM_SHARED_DATA", "AAM_SHARED_HOSTS")
"""Variables with the folders of real studies and of captured hosts."""
SECONDS = {"slurm": 60, "container": 40, "slow": 15, "medium": 3}
"""Rough duration of a test by its marker, to start the longest files first."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files of several workers by the sum of the durations of their tests, longest first.

    A worker takes whole files; with the longest at the end one worker would run it alone.
    """
    if not hasattr(config, "workerinput"):
        return
    seconds: Counter[Path] = Counter()
    for item in items:
        seconds[item.path] += max(
            (SECONDS[mark.name] for mark in item.iter_markers() if mark.name in SECONDS), default=0
        )
    items.sort(key=lambda item: -seconds[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as failed in CI, if CI starts or has what the test needs.

    These are container engines, Slurm, and the data whose folders the environment names.
    """
    report = yield
    needs = [name for name in ("container", "slurm") if item.get_closest_marker(name)]
    needs += [name for name in SHARED if name in os.environ and name in str(report.longrepr)]
    if report.skipped and needs and os.environ.get("CI") == "true" and "gpu" not in item.keywords:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def study_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with table.biom, tree.nwk and metadata.tsv of 36 samples and 90 ASVs of 60 nt."""
    folder = tmp_path_factory.mktemp("study")
    options = Example(
        output_dir=folder,
        samples=36,
        asvs=90,
        length=60,
        richness=25,
        depth=900,
        sites=3,
        subjects=12,
        seed=7,
    )
    write_study(simulate(options), options)
    return folder


@pytest.fixture(scope="session")
def study(study_dir: Path) -> Study:
    """The simulated study with its tree."""
    return load_study(
        TableOptions(table=study_dir / "table.biom"),
        PhylogenyOptions(tree=study_dir / "tree.nwk"),
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount disks of so many KiB; only root can."""
    mounted: list[Path] = []

    def mount(kib: int) -> Path:
        place = tmp_path / f"disk-{kib}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = f"cannot mount a small disk: {done.stderr.strip()}"
            if os.environ.get("CI") == "true" and os.geteuid() == 0:
                pytest.fail(reason)
            pytest.skip(reason)
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)
