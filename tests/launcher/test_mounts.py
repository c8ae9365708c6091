"""Mounts and path checks: links, relative paths, unusual names, nested paths."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aam.contract.errors import CannotCreate, ConfigurationError, UsageError
from launcher.detect import detect
from launcher.launch import MIN_FREE, path_facts, require_outputs, require_space
from launcher.plan.mounts import (
    Mount,
    fold,
    mount_option,
    of_paths,
    parse_bind,
    require_passable,
)
from tests.support.decisions import inputs_of
from tests.support.launches import parse


def mounts(folder: Path, *args: str) -> list[tuple[str, str, bool]]:
    request = parse(args)
    folded = fold(of_paths(path_facts(request, str(folder))))
    return [(m.source, m.target, m.writable) for m in folded]


def args_of(folder: Path, *args: str) -> tuple[str, ...]:
    request = parse(args)
    inputs = inputs_of(detect(), request, paths=path_facts(request, str(folder)))
    return inputs.absolute_request.arguments


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/t.biom").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "why"), [("a\r\nb", "line end"), (os.fsdecode(b"latin\xe9"), "not UTF-8")]
)
def test_names_that_no_engine_can_be_given(name: str, why: str) -> None:
    odd = Mount(f"/d/{name}", f"/d/{name}", False, "input", "--table")
    with pytest.raises(UsageError, match=why) as caught:
        require_passable([odd], [odd.source])
    str(caught.value).encode()  # it can be printed anywhere
    for fine in ("cr\rx", "lf\nx", "ü", " ", "a,b:c"):
        require_passable([Mount(fine, fine, False, "", "")], [fine])


def test_a_model_in_another_study_sees_its_inputs_and_writes_beside_its_output(here: Path) -> None:
    (here / "run/model").mkdir(parents=True)
    (here / "data/m.tsv").touch()
    args = ("evaluate", "--model", "run", "--table", "data/t.biom", "--metadata", "data/m.tsv")
    found = mounts(here, *args, "--metadata-column", "c", "--output", "out/elsewhere")
    assert (f"{here}/run", f"{here}/run", False) in found
    assert (f"{here}/out", f"{here}/out", True) in found
    assert {target for _, target, _ in found} >= {f"{here}/data/t.biom", f"{here}/data/m.tsv"}


PATHS: dict[str, tuple[str, str, str]] = {
    "relative paths": (
        "pretrain --table=./data//t.biom --output-dir ./new/", "data/t.biom new",
        "data/t.biom, new rw"),
    "equals signs": ("pretrain --table=a=b --output-dir o=p", "a=b o=p", "a=b, o=p rw"),
    "links keep their names": (
        "pretrain --table t --output-dir link/new", "t link/new",
        "data/new>link/new rw, data/t.biom>t"),
    "dots after a link go where the kernel goes": (
        "pretrain --table below/../t.biom --output-dir o", "data/t.biom o", "data/t.biom, o rw"),
    # Apptainer cannot mount onto the link, which the other mount shows.
    "a link inside another mount leads on": (
        "pretrain --table out/link.biom --output-dir out", "out/link.biom out",
        "data/t.biom, out rw"),
    "a link that nothing else shows": (
        "pretrain --table link.biom --output-dir out", "link.biom out",
        "data/t.biom>link.biom, out rw"),
    "nested and double paths are folded": (
        "pretrain --table data/t.biom --tree data/t.biom --output-dir run --resume-from run/a.ckpt",
        "data/t.biom data/t.biom run run/a.ckpt", "data/t.biom, run rw"),
    "an input beside an output file stays read-only": (
        "predict --table data/t.biom --model data --output data/p.tsv",
        "data/t.biom data data/p.tsv", "data rw, data/t.biom"),
}  # fmt: skip
"""A command, the paths that it gets, and the mounts as SOURCE[>TARGET][ rw]."""


@pytest.mark.parametrize("name", PATHS)
def test_paths_of_a_command(here: Path, name: str) -> None:
    for folder in ("data/deep", "out", "run"):
        (here / folder).mkdir()
    for file in ("a=b", "run/a.ckpt"):
        (here / file).touch()
    links = {"link": "data", "t": "link/t.biom", "below": "data/deep", "link.biom": "data/t.biom",
             "out/link.biom": "../data/t.biom"}  # fmt: skip
    for link, target in links.items():
        (here / link).symlink_to(target)
    line, paths, mounted = PATHS[name]
    given = [word for word in args_of(here, *line.split()) if not word.startswith("--")]
    assert given == [f"{here}/{path}" for path in paths.split()]
    expected = []
    for text in mounted.split(", "):
        place, _, mode = text.partition(" ")
        source, _, target = place.partition(">")
        expected.append((f"{here}/{source}", f"{here}/{target or source}", mode == "rw"))
    assert mounts(here, *line.split()) == expected


def test_paths_of_a_command_that_another_one_takes(here: Path) -> None:
    """The run folder of the command that is measured is not written."""
    args = ("tune", "--output-dir=tuned", "pretrain", "--table", "data/t.biom")
    given = ("--table", f"{here}/data/t.biom")
    for more in ((), ("--output-dir", "run", "--overwrite")):
        assert args_of(here, *args, *more) == ("--output-dir", f"{here}/tuned", "pretrain", *given)
        assert mounts(here, *args, *more) == [
            (f"{here}/data/t.biom", f"{here}/data/t.biom", False),
            (f"{here}/tuned", f"{here}/tuned", True),
        ]
    assert args_of(here, "memory", "--json", *args[2:]) == ("--json", "pretrain", *given)
    assert [m[0] for m in mounts(here, "memory", *args[2:])] == [f"{here}/data/t.biom"]
    report = ("profile", "data/t.biom", "--compare", "c.json")
    assert [m[0] for m in mounts(here, *report)] == [f"{here}/c.json", f"{here}/data/t.biom"]
    program = ("--", "python", "train.py", "--table", "{kind}", "--help", "--image")
    words = ("--values", "kind=a,b", *program)
    assert args_of(here, *args[:2], *words)[2:] == words


def write_record(run: Path, paths: dict[str, Path]) -> None:
    inputs = {flag: {"path": str(path), "sha256": ""} for flag, path in paths.items()}
    record = {"aam": "0.1.0", "command": "train", "options": {}, "inputs": inputs}
    (run / "run.json").write_text(json.dumps(record))


def test_a_store_is_an_input_like_any_other_and_its_output_is_renamed(here: Path) -> None:
    store = here / "data/study.aam"
    found = mounts(here, "prepare", "--table", "data/t.biom", "--output", "data/study.aam")
    assert found[0] == (f"{here}/data", f"{here}/data", True)
    store.mkdir()
    (store / "store.json").touch()
    again = ("prepare", "--table", "data/t.biom", "--output", "data/study.aam", "--overwrite")
    assert mounts(here, *again)[0] == (f"{here}/data", f"{here}/data", True)
    used = ("train", "--table", "data/study.aam", "--metadata", "data/study.aam",
            "--metadata-column", "x", "--output-dir", "o")  # fmt: skip
    assert mounts(here, *used) == [
        (str(store), str(store), False),
        (f"{here}/o", f"{here}/o", True),
    ]
    (here / "run").mkdir()
    write_record(here / "run", {"--metadata": store})
    assert (str(store), str(store), False) in mounts(here, "report", "--run-dir", "run")


def test_a_run_folder_brings_what_it_links_to_and_names(here: Path) -> None:
    run = here / "run"
    (run / "checkpoints").mkdir(parents=True)
    (here / "far.ckpt").touch()
    (run / "checkpoints/best.ckpt").symlink_to(here / "far.ckpt")
    (run / "checkpoints/last.ckpt").symlink_to("best.ckpt")
    (run / "broken").symlink_to("/no/where")
    write_record(run, {"--table": here / "data/t.biom", "--tree": Path("/gone")})
    found = mounts(here, "report", "--run-dir", "run", "--output", "page/r.html")
    assert [target for _, target, _ in found] == [
        f"{here}/data/t.biom", f"{here}/far.ckpt", f"{here}/page", f"{here}/run"]  # fmt: skip
    assert {target: rw for _, target, rw in found}[f"{here}/run"] is False


@pytest.mark.parametrize("text", ["", "[]", '{"inputs": 3}', '{"inputs": {"a": 1}}', "\xff"])
def test_a_damaged_run_json_names_nothing(here: Path, text: str) -> None:
    (here / "run").mkdir()
    (here / "run/run.json").write_text(text)
    assert mounts(here, "report", "--run-dir", "run") == [(f"{here}/run", f"{here}/run", True)]


@pytest.mark.parametrize("target", ["/", "/usr", "/etc", "/dev", "//etc", "//"])
def test_the_image_is_not_hidden(here: Path, target: str) -> None:
    with pytest.raises(ConfigurationError, match="belongs to the image"):
        mounts(here, "example", "--output-dir", target)
    for text in (target, f"/d:/{target}:rw", f"/d:{target}/../{target}/"):
        with pytest.raises(ConfigurationError, match="belongs to the image"):
            fold([parse_bind(text, os.path.exists, "")])
    # the run.json of another person names its inputs as it likes
    with pytest.raises(ConfigurationError, match="belongs to the image"):
        fold([Mount(target, target, False, "input", "run.json of --run-dir")])


@pytest.mark.parametrize(
    ("text", "source", "target", "writable"),
    [
        ("/a", "/a", "/a", False),
        ("/a:rw", "/a", "/a", True),
        ("/a:ro", "/a", "/a", False),
        ("/a:/b", "/a", "/b", False),
        ("/a:/b:rw", "/a", "/b", True),
        ("/odd:name,x", "/odd:name,x", "/odd:name,x", False),
        ("/odd:name,x:rw", "/odd:name,x", "/odd:name,x", True),
        ("/odd:name,x:/b:rw", "/odd:name,x", "/b", True),
        ("/a:/b:z", "/a", "/b", False),
        ("/a:/b:rw,Z", "/a", "/b", True),
        ("/a:ro,z", "/a", "/a", False),
        ("here", f"{os.getcwd()}/here", f"{os.getcwd()}/here", False),
    ],
)
def test_a_bind_is_read(text: str, source: str, target: str, writable: bool) -> None:
    """A source that exists is taken with its colons."""
    mount = parse_bind(text, "/odd:name,x".__eq__, "")
    assert (mount.source, mount.target, mount.writable) == (source, target, writable)


@pytest.mark.parametrize("text", ["/x:~/y", "/x:y", "/x:./y:rw", "/odd:name,x:y:rw"])
def test_a_relative_place_in_the_container_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not absolute"):
        parse_bind(text, "/odd:name,x".__eq__, "--bind")


@pytest.mark.parametrize("text", ["/a:/b:wx", "/odd:name,x:/b:c", "/a:/b:rw,y", "/a:rw:wx"])
def test_an_unknown_mode_of_a_mount_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="No such mode of a mount"):
        parse_bind(text, "/odd:name,x".__eq__, "--bind")


@pytest.mark.parametrize("text", ["", ":", ":/b", "/a:", "/a::rw", ":rw"])
def test_a_bind_without_a_path_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Nothing to mount"):
        parse_bind(text, lambda path: False, "--bind")


def test_a_later_mount_of_a_place_wins() -> None:
    first, second = Mount("/a", "/t", False, "", ""), Mount("/b", "/t", False, "", "")
    assert fold([first, second]) == (second,)
    assert fold([Mount("/a", "/t", True, "", ""), second])[0].writable


def test_mounts_are_quoted_as_csv() -> None:
    assert mount_option("/a", "/b", True)[1] == "type=bind,source=/a,destination=/b"
    odd = mount_option('/a,"b"\n', "/c", False)[1]
    assert odd == 'type=bind,"source=/a,""b""\n",destination=/c,ro'


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_output(here: Path) -> None:
    (here / "data").chmod(0o555)
    request = parse(["example", "--output-dir", "data/new"])
    with pytest.raises(CannotCreate, match="may not be written"):
        require_outputs(path_facts(request, str(here)))


@pytest.mark.skipif(not os.access("/proc", os.X_OK), reason="no procfs")
def test_an_output_where_nobody_may_write_is_known_before_the_start(here: Path) -> None:
    request = parse(["example", "--output-dir", "/proc/self/nothing/out"])
    with pytest.raises(CannotCreate, match="No access for --output-dir"):
        require_outputs(path_facts(request, str(here)))


def test_a_disk_without_room_is_known_before_the_start(
    small_disk: Callable[[int], Path], here: Path
) -> None:
    disk = small_disk(1024)
    args = ["pretrain", "--table", str(here / "data/t.biom"), "--output-dir"]
    request = parse([*args, str(disk / "a/out")])
    with pytest.raises(CannotCreate, match=f"has 1 MiB left of the {MIN_FREE >> 20}"):
        require_outputs(path_facts(request, str(here)))
    with pytest.raises(CannotCreate, match="caches.*--scratch"):
        require_space(str(disk), "No room for caches", "give another --scratch")
    require_space(str(here), "No room", "")


def test_a_file_that_another_mount_hides_is_mounted_by_itself() -> None:
    """The nearest mount around a file decides what is seen there, not one further out."""
    outer = parse_bind("/data", bool, "--bind")
    inner = parse_bind("/other:/data/sub", os.path.exists, "--bind")
    table = Mount("/data/sub/t.biom", "/data/sub/t.biom", False, "input", "--table")
    assert [m.source for m in fold([outer, inner, table])] == ["/data", "/other", table.source]
    assert [m.source for m in fold([outer, table])] == ["/data"]
