"""Records of JSON and YAML: a typed value, or one sentence with the place and what is wrong."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from aam.contract.errors import AamError, ConfigurationError, DataError, MissingInput
from aam.contract.files import dump_json, write_json
from aam.contract.records import (
    Count,
    Mismatch,
    Sourced,
    convert,
    decode_json,
    read_json,
    read_yaml_entries,
    yaml_entries,
)


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    max_time: str | None = None
    gpus: Count = 0
    engine: Literal["podman", "docker"] | None = None


class Sites(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sites: dict[str, Site] = {}
    ports: list[Annotated[int, Meta(ge=1, le=65535)]] = []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sites:\n  a: {}\n  a: {}\n", "Duplicate key: 'a' in s.yaml:3; keep one of them"),
        ("sites:\n  a: {max-time: 2020-13-01}", "Not a value: s.yaml:2, month must be in 1..12"),
        ("sites: &x 1\nports: *x\n", "*x in s.yaml:2; write its value out"),
        ("[" * 100, "more than 20 levels"),
        ("{[a]: 1}", "a key that is no text"),
        ("sites: 'b", "s.yaml:1, found unexpected end of stream"),
        ("- a\n", "Not a mapping: s.yaml:1"),
        ("!!set {sites, ports}", "Not a mapping: s.yaml:1"),
        ("!!str {=: sites}", "Not a mapping: s.yaml:1"),
        ("2020-13-01: 1", "Not a value: s.yaml:1, month must be in 1..12"),
        ("\ud800: 1", "Not a value: s.yaml, 'utf-8' codec"),
        ("ports: 1\nsits: 2", "'sits' in s.yaml:2; did you mean 'sites'?"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: '\\0'\nb: \"\\0\"", "A NUL character"),
    ],
)
def test_yaml_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        yaml_entries(text, "s.yaml", ["sites", "ports"])
    assert message in str(refused.value)


def test_yaml_entries_have_their_line(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("\ufeffa: {max-time: 24:00:00, gpus: 4}\nb:\n- 2\n", encoding="utf-8")
    found = read_yaml_entries(file, "sites", ["a", "b"])
    assert found["b"] == Sourced([2], f"{file}:2")
    assert found["a"].decoded(Site, "a").value == Site("24:00:00", 4)
    assert Sourced(30, "s").decoded(str, "limit").value == "30"
    assert yaml_entries("", "s.yaml", ["a"]) == {}
    file.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigurationError, match="Not a text file"):
        read_yaml_entries(file, "sites", ["a"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {"max-tim": "1"}}, "An unknown key: unknown key 'max-tim' in 'sites.a' in s:1; did"),
        ({"a": {}, "b": {"gpus": -3}}, "sites.b.gpus is -3, expected a whole number >= 0 in s:1"),
        ({"b": {"engine": "pod"}}, "sites.b.engine is 'pod', not one of docker, podman in s:1"),
        ({"a": {"x` - at `$.b": 1}}, "unknown key 'x` - at `$.b' in 'sites.a' in s:1"),
        ({"b": {"engine": ["podman"]}}, "sites.b.engine is a list, not one of docker, podman in"),
        ({"b": {"max-time": [1]}}, "sites.b.max-time is a list, expected text or null in s:1"),
    ],
)
def test_an_entry_is_refused_with_its_key(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Sourced(value, "s:1").decoded(dict[str, Site], "sites")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"sites": {"a": {"gpus": 1}, "b": {"gpus": "x"}}}', "sites.b.gpus is 'x', expected"),
        (b'{"ports": [1e999]}', "range"),
        (b'{"ports": [%d]}' % 2**70, "more than 63 bits"),
        (b'{"a": "\\u0000"}', "a NUL character"),
        (b'{"a": "\\ud800xxxxxxx"}', "surrogate"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 40 + b"]" * 40, "more than 32 levels"),
        (b"", "truncated"),
        (b" " * ((64 << 20) + 1), "more than 64 MiB"),
        (b'{"sits": {}}', "unknown key 'sits', did you mean 'sites'?"),
    ],
)
def test_json_is_refused_with_its_field(content: bytes, message: str) -> None:
    with pytest.raises(DataError) as refused:
        decode_json(content, Sites, "record", "'r.json'")
    assert message in str(refused.value)
    assert str(refused.value).startswith("The record is damaged: 'r.json', ")


def test_json_files(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    write_json(file, {"a": math.nan, "b": [1.5, -math.inf], "c": (1, 2)})
    assert read_json(file, dict[str, Any], "record") == {"a": None, "b": [1.5, None], "c": [1, 2]}
    assert dump_json({"a": math.inf}) == '{"a": null}'
    for path, error in ((tmp_path / "none.json", MissingInput), (tmp_path, AamError)):
        with pytest.raises(error):
            read_json(path, dict[str, Any], "record")


def test_values_are_converted() -> None:
    assert convert({"gpus": 2}, Site) == Site(gpus=2)
    with pytest.raises(Mismatch, match=r"^forest\.ports\[0\] is 0, expected a whole number >= 1$"):
        convert({"ports": [0]}, Sites, "forest")
    with pytest.raises(Mismatch, match="^forest has no 'a'$"):
        convert({}, msgspec.defstruct("Needs", [("a", int)]), "forest")
