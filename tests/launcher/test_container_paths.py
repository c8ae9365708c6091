"""Paths in containers: mounts, links, names with special characters."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from tests.support.engines import USER, Engines
from tests.support.launched_containers import (
    ENGINES,
    docker_where_there_is_one,
    each,
    engines,
    place,
    study,
)

__all__ = ["docker_where_there_is_one", "engines", "place"]
pytestmark = pytest.mark.container
fewer = pytest.mark.parametrize(("engine", "user"), [ENGINES[0], ENGINES[2]])


@fewer
def test_symbolic_links_and_relative_paths(
    engines: Engines, place: Path, engine: str, user: str
) -> None:
    table = study(place, "real/table.biom")
    (place / "scratch").symlink_to(place / "real")
    link = place / "link.biom"
    link.symlink_to("scratch/table.biom")
    relative = os.path.relpath(link, engines.folder)
    args = ["pretrain", "--table", relative, "--output-dir", str(place / "scratch/new")]
    printed = engines.probe(engine, *args, user=user)
    assert printed["args"][2] == str(link)
    assert printed["text"][str(link)] == table.read_text()
    assert (place / "real/new").is_dir()


@fewer
def test_a_link_in_an_output_folder(engines: Engines, place: Path, engine: str, user: str) -> None:
    table = study(place, "real/table.biom")
    (place / "out").mkdir()
    shutil.chown(place / "out", USER)
    link = place / "out/link.biom"
    link.symlink_to("../real/table.biom")
    args = ["pretrain", "--table", str(link), "--output-dir", str(place / "out")]
    printed = engines.probe(engine, *args, user=user)
    assert printed["args"] == args
    assert printed["text"] == {str(link): table.read_text()}
    assert printed["writable"] == {str(link): False, str(place / "out"): True}


@fewer
def test_a_report_writes_into_its_run(
    engines: Engines, place: Path, engine: str, user: str
) -> None:
    run, table = place / "run", study(place, "elsewhere/metadata.tsv")
    run.mkdir()
    inputs = {"--metadata": {"path": str(table), "sha256": ""}}
    record = {"aam": "0.1.0", "command": "train", "options": {}, "inputs": inputs}
    (run / "run.json").write_text(json.dumps(record))
    shutil.chown(run, USER)
    assert engines.probe(engine, "report", "--run-dir", str(run))["writable"][str(run)] is True
    page = ["--output", str(place / "page/report.html")]
    printed = engines.probe(engine, "report", "--run-dir", str(run), *page)
    assert printed["writable"][str(run)] is False


# Every character that a file name can have; the launcher's arguments are text, so it must decode.
NAMES = st.text(
    st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=60
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200 and name[0] != "-")
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)
few = rules(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@each
@few
@given(names=st.tuples(NAMES, NAMES, NAMES, NAMES), values=st.lists(VALUES, min_size=5, max_size=5))
@example(names=("a", "b", "c", "d"), values=["", "\x80", "$A `b`", "a,b\n", "'\"\\"])
def test_paths_and_values_arrive_unchanged(
    engines: Engines, engine: str, user: str, names: tuple[str, ...], values: list[str]
) -> None:
    place = engines.folder / "random"
    shutil.rmtree(place, ignore_errors=True)
    folder, table_name, tree_name, out_name = names
    table, tree = study(place / folder, table_name), study(place / "x" / folder, tree_name)
    out = place / "out" / folder / out_name
    (place / "out").mkdir()
    for made in (place, place / "out"):
        shutil.chown(made, USER)
    args = ["pretrain", f"--table={table}", "--tree", str(tree), f"--output-dir={out}"]
    given = [word for n, v in enumerate(values) for word in ("--env", f"VALUE{n}={v}")]
    printed = engines.probe(engine, *args, *given, user=user)
    pairs = ["--table", str(table), "--tree", str(tree), "--output-dir", str(out)]
    assert printed["args"] == ["pretrain", *pairs]
    assert printed["text"][str(tree)] == "a table"
    assert [printed["environment"][f"VALUE{n}"] for n in range(5)] == values
    assert out.is_dir()


def test_a_broken_sif_is_known_before_it_starts(engines: Engines, place: Path) -> None:
    whole = (engines.images / "cpu.sif").read_bytes()
    for name, content in (
        ("short", whole[: len(whole) // 2]),
        ("none", b"ELF" * 999),
        ("empty", b""),
    ):
        path = place / f"{name}.sif"
        path.write_bytes(content)
        args = ["example", "--output-dir", str(place / "out"), "--image", str(path)]
        done = engines.launch("apptainer", *args)
        assert done.returncode == 66, done.stderr
        assert "Not a complete SIF" in done.stderr


def test_a_folder_in_the_way_is_not_trusted(engines: Engines, place: Path) -> None:
    (place / "aam-1001").mkdir(mode=0o777)
    (place / "aam-1001" / f"local-{os.uname().nodename}").symlink_to("/etc")
    args = ["example", "--output-dir", str(place / "out"), "--scratch", str(place)]
    done = engines.launch("apptainer", *args)
    assert done.returncode == 77, done.stderr
    assert shlex.quote(str(place)) in done.stderr or str(place) in done.stderr


@each
def test_files_in_shared_memory(engines: Engines, place: Path, engine: str, user: str) -> None:
    """Input, output and private folder below /dev/shm, of which a container may have its own."""
    memory = Path(f"/dev/shm/aam-test-{os.getpid()}")
    try:
        table = study(memory / "in")
        shutil.chown(memory, user)
        args = ["pretrain", "--table", str(table), "--output-dir", str(memory / "out")]
        seen = engines.probe(engine, *args, "--scratch", str(memory), user=user)
        assert seen["environment"]["HOME"].startswith(f"{memory}/aam-")
        assert (memory / "out").is_dir()
        assert table.read_text() == "a table"
    finally:
        shutil.rmtree(memory)
