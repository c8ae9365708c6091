"""Setting `tuned`: options and variables that were measured on a GPU architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from aam.contract.errors import AamError
from launcher import config
from launcher.host.facts import Host
from launcher.launch import path_facts
from launcher.plan.assembly import Plan, assemble_plan
from launcher.plan.decision import decide
from tests.launcher.test_plan import PRETRAIN, decided, host_of
from tests.support.decisions import inputs_of
from tests.support.hosts import MI300A, Tree
from tests.support.launches import parse

FILE = """tuned:
  gfx942:
    options: {batch-size: 64, mixed-precision: bf16, gradient-checkpointing: true}
    env: {PYTORCH_HIP_ALLOC_CONF: "expandable_segments:True", HSA_XNACK: 1}
  sm_90:
    options: {batch-size: 128}
  cpu:
    options: {batch-size: 8}
images: {rocm63: {prefer: {gfx942: fastest of the images}}}
"""
"""As `aam acceptance` writes it; also a site file."""


@pytest.fixture
def apu(tmp_path: Path) -> Host:
    return host_of(Tree(tmp_path / "host").cpu().amd(MI300A, 2).amd(MI300A, 3))


def planned(host: Host, file: Path, text: str, *args: str) -> Plan:
    file.write_text(text)
    request = parse((*args, "--site", str(file)))
    settings = config.read(request.launcher_options, {"HOME": str(file.parent)})
    paths = path_facts(request, "/d", live=False)
    inputs = inputs_of(host, request, settings, paths=paths, catalog=config.catalog(settings))
    return assemble_plan(inputs, decide(inputs))


def test_a_file_of_an_acceptance_gives_defaults_and_is_named(apu: Host, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    plan = planned(apu, file, FILE, *PRETRAIN)
    assert plan.image == "rocm63"
    assert plan.argv[-5:] == ("--batch-size", "64", "--mixed-precision", "bf16",
                              "--gradient-checkpointing")  # fmt: skip
    assert plan.variables["PYTORCH_HIP_ALLOC_CONF"] == "expandable_segments:True"
    assert plan.variables["HSA_XNACK"] == "1"
    decided = [d for d in plan.decisions if d.value in ("--batch-size 64", "HSA_XNACK=1")]
    assert {(d.why, d.source) for d in decided} == {("measured as good on gfx942", f"{file}:1")}
    assert len(decided) == 2


def test_what_the_user_or_a_fault_sets_has_precedence(apu: Host, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    own = ["--batch-size", "16", "--no-gradient-checkpointing", "--env", "HSA_XNACK=0"]
    plan = planned(apu, file, FILE, *PRETRAIN, *own)
    assert decided(plan, "flag") == ["--mixed-precision bf16"]
    assert plan.variables["HSA_XNACK"] == "0"
    (tmp_path / "own.yaml").write_text("batch-size: 4\n")
    configured = planned(apu, file, FILE, *PRETRAIN, "--config", str(tmp_path / "own.yaml"))
    assert "--batch-size 64" not in decided(configured, "flag")
    fault = planned(apu, file, FILE, *PRETRAIN, "--image", "rocm62")
    assert "--no-gradient-checkpointing" in fault.argv
    assert "--gradient-checkpointing" not in fault.argv


def test_only_runs_on_the_architecture_get_them(apu: Host, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    assert decided(planned(apu, file, FILE, *PRETRAIN, "--device", "cpu"), "flag") == [
        "--batch-size 8"
    ]
    predict = ("predict", "--table", "/t", "--model", "/m", "--output", "/o/p.tsv")
    assert decided(planned(apu, file, FILE, *predict), "flag") == ["--batch-size 64"]
    for measures in (
        ("check",),
        ("golden", "generate", "/o/golden"),
        ("tune", "--output-dir", "/o/t", *PRETRAIN[:3]),
    ):
        plan = planned(apu, file, FILE, *measures)
        assert (decided(plan, "flag"), "HSA_XNACK" in plan.variables) == ([], False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{gfx942: {options: {batchsize: 4}}}",
         "unknown key 'batchsize' in 'tuned.gfx942.options' in {f}:1; did you mean"),
        ("{gfx942: [1]}", "tuned.gfx942 is a list, expected a mapping in {f}:1"),
        ("{gfx942: {options: {batch-size: many}}}", "--batch-size: 'many' in {f}:1"),
        ("{gfx942: {options: {batch-size: 0}}}", "--batch-size 0"),
        ("{gfx942: {env: {--bind: x}}}", "Not the name of a variable: '--bind' of tuned.gfx942"),
        ],
)  # fmt: skip
def test_mistakes_name_their_place(apu: Host, tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "settings.yaml"
    with pytest.raises(AamError) as caught:
        planned(apu, file, f"tuned: {text}\n", *PRETRAIN)
    assert sentence.format(f=file) in str(caught.value)


def test_a_default_that_the_host_sets_too_reaches_the_container(apu: Host, tmp_path: Path) -> None:
    """The variable is of no pattern that lets it in."""
    text = "tuned:\n  gfx942:\n    env: {OF_NO_PATTERN: 1}\n"
    host = replace(apu, environment={**apu.environment, "OF_NO_PATTERN": "2"})
    plan = planned(host, tmp_path / "s.yaml", text, *PRETRAIN)
    assert plan.variables["OF_NO_PATTERN"] == "2"
    assert (
        dict(planned(apu, tmp_path / "s.yaml", text, *PRETRAIN).variables)["OF_NO_PATTERN"] == "1"
    )
