"""`aam-launch acceptance --site` on a real Slurm: one node, then two, into one file."""

from __future__ import annotations

import re

import pytest

from aam.stack.acceptance_run import PARTS, SEVERAL_RANKS, read
from tests.support.slurm_cluster import SITE, Cluster, Job, exclusive

pytestmark = [pytest.mark.slurm, pytest.mark.container, pytest.mark.slow, pytest.mark.nightly]
MINUTES = 15


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(("host", "launch", "nodes"), id="three"),
        pytest.param((), id="all"),
    ],
)
def test_a_job_of_one_node_and_one_of_two_write_one_file(
    cluster: Cluster, chosen: tuple[str, ...]
) -> None:
    output = cluster.folder / f"accepted-{len(chosen)}"
    site = output.with_suffix(".yaml")
    site.write_text(SITE.replace("gpus_per_node: 4", "gpus_per_node: 1"))
    words = ["acceptance", "--site", site, "--image", "cpu", "--device",
             "cpu", "--minutes", MINUTES, *(["--parts", *chosen] if chosen else [])]  # fmt: skip
    with exclusive():
        done = cluster.launch(*words, "--output-dir", output)
        assert done.returncode == 0, done.stderr
        first, second = (
            Job(cluster, number, output.with_name(f"{output.name}-{number}.log"))
            for number in re.findall(r"^Job (\d+):", done.stdout, re.MULTILINE)
        )
        # A part writes its line at its end, and the budget alone limits its time.
        assert first.ended(60 * MINUTES) == "COMPLETED", first.output
        assert second.ended(60 * MINUTES) == "COMPLETED", second.output
    content = read(output / "acceptance.json")
    parts = {run.nodes: run.parts for run in content.runs}
    assert set(parts[1]) == set(chosen or PARTS) - set(SEVERAL_RANKS)
    assert set(parts[2]) == set(SEVERAL_RANKS)
    assert parts[1]["launch"].measured["launcher"] is True
    assert 0 < parts[1]["launch"].measured["overhead"] < 240
    verdicts = {part.verdict for run in parts.values() for part in run.values()}
    assert not verdicts & {"wrong", "failed"}
    assert "2 ranks" in second.output
    assert cluster.folder.name not in (output / "acceptance.json").read_text()
