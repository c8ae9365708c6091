"""Slurm cluster of the tests of jobs, one run without Slurm, and tests that run side by side.

A test mostly waits for its jobs, and Slurm runs those of several tests on its two nodes at once. So
the first test of a file that runs begins the others in threads, a few at a time; each then reports
its own result.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import USER, open_folder
from tests.support.slurm_cluster import LONG, Cluster, exclusive, start

AT_ONCE = 5
"""Tests that run side by side: jobs of some are on the two nodes, those of others wait for them."""
BEGUN = pytest.StashKey[dict[str, "Future[None]"]]()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_folder("slurm") as folder:
        yield start(folder)


@pytest.fixture(scope="module")
def whole(cluster: Cluster) -> Path:
    """A run without Slurm, in the same image, that nothing interrupts."""
    done = cluster.launch(
        "--runtime", "apptainer", "--image", "cpu", *cluster.pretraining("whole", LONG)
    )
    assert done.returncode == 0, done.stderr
    return cluster.folder / "whole"


@pytest.fixture(scope="module")
def begun(request: pytest.FixtureRequest, cluster: Cluster, whole: Path) -> Iterator[None]:
    """Begin the selected tests of a file, in their order; they take these two fixtures alone."""
    given = {"cluster": cluster, "whole": whole}
    own = [item for item in request.session.items if item.path == request.path]
    with exclusive(), ThreadPoolExecutor(AT_ONCE) as pool:
        request.session.stash[BEGUN] = {item.nodeid: _begin(pool, item, given) for item in own}
        yield
        pool.shutdown(cancel_futures=True)
        cluster.slurm("scancel", f"--user={USER}")


def _begin(pool: ThreadPoolExecutor, item: Any, given: dict[str, Any]) -> Future[None]:
    return pool.submit(item.obj, **{name: given[name] for name in item._fixtureinfo.argnames})


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Wait for a test that the fixture `begun` has begun."""
    begun = pyfuncitem.session.stash.get(BEGUN, {})
    if pyfuncitem.nodeid not in begun:
        return None
    begun[pyfuncitem.nodeid].result()
    return True
