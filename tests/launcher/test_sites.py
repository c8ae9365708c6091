"""Sites: the shipped files, valid keys and values, and errors with their line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aam.contract.errors import ConfigurationError
from launcher import config
from launcher.cli import main
from launcher.engines.sif import record_of
from launcher.images import index
from launcher.plan.settings import SETTING_SPECS
from launcher.slurm.site import TYPES, Site, filled
from tests.support.launches import RUN, engine, launch, sif


def site(path: Path, text: str) -> Site:
    path.write_text(text)
    return config.site(str(path))


def test_a_key_of_a_site_is_no_setting() -> None:
    assert not set(TYPES) & set(SETTING_SPECS)


@pytest.mark.parametrize("name", config.sites())
def test_a_fact_shows_its_source_and_how_to_confirm_it(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = config.site(name).facts
    open_facts = {key: fact for key, fact in facts.items() if fact.confirmed is False}
    assert all(fact.source and fact.confirm for fact in open_facts.values())
    main(["doctor", "--site", name])
    shown = capsys.readouterr().out
    assert config.site(name).values.title in shown
    assert shown.count("not confirmed; to confirm:") == len(open_facts)
    for fact in open_facts.values():
        assert fact.confirm in shown


def test_a_value_stands_alone_or_with_its_source(tmp_path: Path) -> None:
    found = site(
        tmp_path / "mine.yaml",
        "partition: {value: a, source: mail, confirmed: yes}\nmax_nodes: 3\nwhole_nodes: yes\n"
        "modules: [one, two]\nnetwork:\n  NCCL_NET: {value: OFI, source: hearsay}\n  FI_X: 1\n"
        "runtime: {value: singularity, source: guide}\n",
    )
    values = found.values
    assert (values.partition, values.max_nodes, values.whole_nodes) == ("a", 3, True)
    assert values.modules == ("one", "two")
    assert values.network == {"NCCL_NET": "OFI", "FI_X": "1"}
    assert found.facts["partition"].confirmed is True
    assert found.facts["max_nodes"].confirmed is None
    assert found.facts["modules"].where == f"{tmp_path}/mine.yaml:4"
    settings = config.read({"--site": f"{tmp_path}/mine.yaml"}, {"HOME": "/h"})
    assert settings.runtime.value == "singularity"
    assert settings.runtime.source == f"{tmp_path}/mine.yaml:8"


@pytest.mark.parametrize("limit", ["24:00:00", "1:30", "2-00:30:00", "90", "UNLIMITED"])
def test_a_time_needs_no_quotes(tmp_path: Path, limit: str) -> None:
    found = site(tmp_path / "s.yaml", f"max_time: {limit}\nnodes: 12\nnetwork: {{A: 0.5}}\n")
    assert (found.values.max_time, found.values.nodes) == (limit, 12)
    assert found.values.network == {"A": "0.5"}


def test_names_of_the_user_are_filled_in_and_those_of_the_job_are_not(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("image_dir: /v/$USER/${USER}s/$HOME\n")
    flags = {"--site": f"{tmp_path}/s.yaml"}
    settings = config.read(flags, {"HOME": "/h", "USER": "ada"})
    assert settings.image_dir.value == "/v/ada/adas/h"
    with (tmp_path / "s.yaml").open("a") as stream:
        stream.write("shared: [/a/$USER]\nhome: {value: /d/$USER/$SLURM_JOB_ID}\n")
        stream.write("bind: [$HOME/b]\nenv: {A: $HOME/c}\n")
    settings = config.read(flags, {"HOME": "/h", "USER": "ada"})
    assert [bind.value for bind in settings.bind] == ["/h/b"]
    assert settings.env["A"].value == "/h/c"
    found = config.site(f"{tmp_path}/s.yaml", {"HOME": "/h", "USER": "ada"})
    assert found.values.shared == ("/a/ada",)
    assert found.values.home == "/d/ada/$SLURM_JOB_ID"
    assert filled("$USERS/$SLURM_JOB_ID", {"USER": "ada"}) == "$USERS/$SLURM_JOB_ID"


def test_the_scratch_of_a_job_is_there_in_the_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.yaml").write_text(f"scratch: {tmp_path}/job_$SLURM_JOB_ID\n")
    flags = {"--site": f"{tmp_path}/s.yaml"}
    variables = {"HOME": "/h", "USER": "ada", "TMPDIR": "/t"}
    assert config.read(flags, variables).scratch.value == "/t"  # on a login node
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert config.read(flags, variables).scratch.value == "/t"  # another node has no such folder
    (tmp_path / "job_7").mkdir()
    assert config.read(flags, variables).scratch.value == f"{tmp_path}/job_7"
    (tmp_path / "s.yaml").write_text("scratch: '${A-$(touch made)}'\n")
    assert config.read(flags, variables).scratch.value == "/t"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("partiton: a", "An unknown key: 'partiton' in {f}:1; did you mean 'partition'?"),
        ("title: t\npartition: {value: a, sorce: b}",
         "An unknown key: unknown key 'sorce' in 'partition' in {f}:2; did you mean 'source'?"),
        ("nodes: many", "Invalid value: nodes is 'many', expected a whole number in"),
        ("nodes: -1", "nodes is -1, expected a whole number >= 0 in {f}:1"),
        ("max_time: soon", "Not a time: 'soon' of max_time in {f}:1; write it as 24:00:00"),
        ("network: {a b: 1}", "Not a variable's name: 'a b' in {f}:1"),
        ("partition: {value: a, confirmed: maybe}",
         "partition.confirmed is 'maybe', expected true or false"),
        ],
)  # fmt: skip
def test_mistakes_name_their_place(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        site(tmp_path / "s.yaml", text)
    assert sentence.format(f=tmp_path / "s.yaml") in str(caught.value)


def test_an_unknown_site_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--site", "kosmos"]) == 78
    assert "No such site: 'kosmos'; known are cosmos" in capsys.readouterr().err


def test_doctor_prints_the_facts_of_a_site_and_what_confirms_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefers = "images: {rocm63: {prefer: {gfx942: ours}}}"
    text = f"home: {{value: {tmp_path}, source: mail, confirmed: no, confirm: df}}\n{prefers}\n"
    (tmp_path / "s.yaml").write_text(text)
    main(["doctor", "--site", f"{tmp_path}/s.yaml", "--image-dir", str(tmp_path)])
    shown = capsys.readouterr().out
    assert f"    home: {tmp_path}\n        from mail; not confirmed; to confirm: df\n" in shown
    assert prefers in shown  # as the file has it


NODES = "vendor: amd\narch: gfx942\ngpu: MI300A\ngpus_per_node: 4\nruntime: apptainer\n"


def test_doctor_judges_a_node_of_the_site_on_a_login_node(folder: Path) -> None:
    """A login node has no GPU, and no PyTorch of its own."""
    (folder / "s.yaml").write_text(f"{NODES}image_dir: {folder}\n")
    engine(folder, "apptainer", "apptainer version 1.4.5")
    refused = launch(folder, "doctor", "--site", "./s.yaml")
    assert refused.returncode == 69
    assert "A job would be refused: Image rocm64 is not built" in refused.stdout
    index.write(folder, "rocm64", "sif", record_of(sif(folder / "rocm64.sif")))
    done = launch(folder, "doctor", "--site", "./s.yaml")
    assert done.returncode == 0, done.stdout
    assert "job           rocm64 by apptainer on a node, 4 x MI300A (gfx942)" in done.stdout
    assert "would be refused" not in done.stdout


@pytest.mark.parametrize(
    ("machine", "image"), [("", "cuda132"), ("aarch64", "cuda132-aarch64"), ("x86_64", "cuda132")]
)
def test_a_site_states_the_processor_of_its_nodes(folder: Path, machine: str, image: str) -> None:
    """Jobs of a host with x86-64 may run on nodes with Arm (GH200)."""
    if os.uname().machine != "x86_64":
        pytest.skip("submits from x86-64")
    facts = "vendor: nvidia\narch: sm_90\ngpu: GH200\ngpu_request: --gres=gpu:{gpus}\n"
    (folder / "s.yaml").write_text(f"{facts}image_dir: {folder}\n")
    if machine:
        with (folder / "s.yaml").open("a") as stream:
            stream.write(f"machine: {machine}\n")
    engine(folder, "apptainer", "apptainer version 1.4.5")
    line = ("submit", "pretrain", "--site", "./s.yaml", "--dry-run", *RUN[1:])
    done = launch(folder, *line)
    assert done.returncode == 0, done.stderr
    assert f"--image {image} " in done.stdout
    assert ("The nodes have a different processor" in done.stderr) == (machine == "aarch64")
