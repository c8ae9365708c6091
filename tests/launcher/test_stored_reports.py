"""Stored check reports: keys, owners, caches, and the check that measures one."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aam.contract.check_report import CheckReport
from aam.contract.errors import Unavailable
from launcher import check_reports
from launcher.engines.native import detect_stack
from launcher.host.facts import Host
from launcher.host_table import report_lines
from launcher.plan.plan import Plan
from launcher.plan.request import parse
from launcher.plan.selection import Choice, choose
from tests.launcher.test_plan import BUILT, PRETRAIN, mi300a
from tests.support.check_reports import KEY
from tests.support.decisions import inputs_of

__all__ = ["mi300a"]


# --- where they are kept


def test_a_report_is_found_under_its_key_alone(tmp_path: Path, correct_report: CheckReport) -> None:
    cache = tmp_path / "cache"
    assert check_reports.stored(KEY, cache).report is None
    assert check_reports.store(correct_report, KEY, cache) is None
    found = check_reports.stored(KEY, cache)
    assert (found.report, found.source) == (correct_report, str(check_reports.place(KEY, cache)))
    assert os.stat(found.source).st_mode & 0o777 == 0o600
    for change in ({"image": "sha256:2"}, {"arch": "gfx90a"}, {"driver": "6.8.5"}, {"aam": "9"}):
        other = check_reports.stored(replace(KEY, **change), cache)
        assert other.report is None, change
        assert other.findings == ()


def _swap(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.write_text("{"), "A damaged check report"),
        (lambda path: path.write_text("[]"), "A damaged check report"),
        (lambda path: path.write_text('{"format": 7}'), "format 7, this program reads 1"),
        (lambda path: path.write_text('{"format": 1, "cases": [{}]}'), "A damaged check report"),
        (lambda path: path.chmod(0o666), "others may write it"),
        (lambda path: path.parent.chmod(0o777), "others may write it"),
        (_swap, "Too many levels of symbolic links"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "it is not a regular file"),
        (
            lambda path: path.write_text(path.read_text().replace("6.10.5", "6.8.5")),
            "it is for another key",
        ),
    ],
)
def test_a_report_that_cannot_be_trusted_is_not_used(
    tmp_path: Path, correct_report: CheckReport, harm: Callable[[Path], object], reason: str
) -> None:
    check_reports.store(correct_report, KEY, tmp_path / "cache")
    harm(check_reports.place(KEY, tmp_path / "cache"))
    found = check_reports.stored(KEY, tmp_path / "cache")
    assert found.report is None
    assert reason in found.findings[0].evidence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_report_of_another_user_is_not_used(tmp_path: Path, correct_report: CheckReport) -> None:
    check_reports.store(correct_report, KEY, tmp_path / "cache")
    os.chown(check_reports.place(KEY, tmp_path / "cache"), 12345, 12345)
    found = check_reports.stored(KEY, tmp_path / "cache")
    assert "it belongs to another user" in found.findings[0].evidence


def test_a_cache_that_cannot_be_written_is_reported(
    tmp_path: Path, correct_report: CheckReport
) -> None:
    (tmp_path / "file").write_text("")
    unkept = check_reports.store(correct_report, KEY, tmp_path / "file" / "cache")
    assert unkept is not None
    assert unkept.cause == "The check report cannot be stored"


def test_the_doctor_shows_those_of_the_host(
    tmp_path: Path, mi300a: Host, correct_report: CheckReport
) -> None:
    assert "not yet measured" in next(report_lines(mi300a, []))
    for number, change in enumerate(({"driver": "kernel unknown"}, {"arch": "gfx90a"})):
        key = replace(KEY, image=str(number), **change)
        check_reports.store(replace(correct_report, key=key), key, tmp_path)
    (line,) = report_lines(mi300a, check_reports.of_host(mi300a, tmp_path))
    assert "auto right" in line
    assert "gfx942" in line


# --- how they are measured


def plan_of(*args: str) -> Plan:
    return Plan("native", sys.executable, args, (("PYTHONSAFEPATH", "1"),))


@pytest.mark.medium
def test_a_real_check_is_kept_under_the_key_of_a_host(
    tmp_path: Path, mi300a: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    """The processor of this machine stands for the GPU of a host that cannot be had."""
    choice = choose(inputs_of(mi300a, parse(PRETRAIN), built=BUILT, native=detect_stack()))
    key = check_reports.key_of(mi300a, choice, detect_stack())
    assert key is not None
    assert key == replace(KEY, driver="kernel unknown")
    found = check_reports.measure(plan_of("check", "--json", "--quick", "--device", "cpu"), key)
    assert (
        "measuring attention once for gfx942, driver kernel unknown, sha256:1"
        in capfd.readouterr().err
    )
    assert check_reports.store(found, key, tmp_path) is None
    kept = check_reports.stored(key, tmp_path)
    assert kept.report is not None
    assert kept.report.identity["torch"] == torch.__version__


@pytest.mark.medium
def test_a_check_that_refuses_stops_the_launch() -> None:
    with pytest.raises(Unavailable, match="The GPU does not compute: No GPU") as caught:
        check_reports.measure(plan_of(*check_reports.check_command("amd").argv), KEY)
    assert "--no-check starts all the same" in str(caught.value)


def test_a_check_that_fails_otherwise_gives_no_report() -> None:
    with pytest.raises(ValueError, match="No such command"):
        check_reports.measure(plan_of("chekc"), KEY)
    with pytest.raises(ValueError, match="exit status 0"):
        check_reports.measure(plan_of("--version"), KEY)


def test_an_image_is_named_by_its_digest_or_its_file(tmp_path: Path, mi300a: Host) -> None:
    def chosen(**changes: Any) -> Choice:
        choice = choose(inputs_of(mi300a, built=BUILT, native=detect_stack()))
        assert choice.built is not None
        return dataclasses.replace(choice, built=replace(choice.built, **changes))

    sif = tmp_path / "a.sif"
    sif.write_text("one")
    first = check_reports.key_of(mi300a, chosen(digest=None, place=str(sif)), detect_stack())
    assert first is not None
    assert first.image.startswith("file:3-")
    sif.write_text("another")
    other = check_reports.key_of(mi300a, chosen(digest=None, place=str(sif)), detect_stack())
    assert other is not None
    assert other.image != first.image
    assert (
        check_reports.key_of(mi300a, chosen(digest=None, place="aam:rocm63"), detect_stack())
        is None
    )
    native = dataclasses.replace(chosen(), engine="native", built=None, image=None)
    found = check_reports.key_of(mi300a, native, detect_stack())
    assert found is not None
    assert found.image == f"native:{torch.__version__}"
