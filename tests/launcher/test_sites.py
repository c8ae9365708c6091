"""Configuration: shipped and own sites, precedence of the layers, errors with file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aam.contract.errors import ConfigurationError, MissingInput
from aam.contract.records import yaml_entries
from launcher import config
from launcher.cli import main
from launcher.engines.sif import record_of
from launcher.images import index
from launcher.plan.catalog import extended, shipped
from launcher.plan.settings import SETTING_SPECS, from_flags, from_variables, merge
from launcher.slurm.site import Site, filled
from tests.support.launches import RUN, engine, launch, sif


def site(path: Path, text: str) -> Site:
    path.write_text(text)
    return config.site(str(path))


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


# --- layers of configuration


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(config, "SYSTEM", tmp_path / "etc/launch.yaml")
    monkeypatch.setattr(config, "SITES", (tmp_path / "sites",))
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def read(home: Path, *, flags: dict[str, object] | None = None, **variables: str):  # type: ignore[no-untyped-def]
    return config.read(flags or {}, {"HOME": str(home), **variables})


def test_every_layer_beats_the_one_below(home: Path) -> None:
    order = []
    assert read(home).image.value == "auto"
    for path, name in (
        (home / "etc/launch.yaml", "system"),
        (home / "sites/cosmos.yaml", "site"),
        (home / ".config/aam/launch.yaml", "user"),
    ):
        put(path, f"# a comment\nimage: {name}\nbind: [/{name}]\n")
        settings = read(home, AAM_LAUNCH_SITE="cosmos" if name != "system" else "")
        order.append(settings.image.value)
        assert settings.image.source == f"{path}:2"
    settings = read(home, AAM_LAUNCH_SITE="cosmos", AAM_LAUNCH_IMAGE="variable")
    assert (settings.image.value, settings.image.source) == ("variable", "AAM_LAUNCH_IMAGE")
    flags = {"--image": "flag", "--bind": ("/flag", "/more")}
    settings = read(home, flags=flags, AAM_LAUNCH_SITE="cosmos", AAM_LAUNCH_IMAGE="variable")
    assert settings.image.value == "flag"
    assert order == ["system", "site", "user"]
    bound = [bind.value for bind in settings.bind]
    assert bound == ["/system", "/site", "/user", "/flag", "/more"]


def test_defaults_of_folders(home: Path) -> None:
    settings = read(home, TMPDIR="/scratch/u")
    assert settings.image_dir.value == f"{home}/.cache/aam/images"
    assert settings.scratch.value == "/scratch/u"
    assert read(home, AAM_IMAGE_DIR="/i").image_dir.value == "/i"
    assert read(home, XDG_CACHE_HOME="/x").image_dir.value == "/x/aam/images"
    assert config.private_folder(settings, 7, "n1", "42") == "/scratch/u/aam-7/42-n1"


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("\nimagee: x\n", ["'imagee'", "launch.yaml:2", "did you mean 'image'?"]),
        ("image: [a]\n", ["image is a list, expected text in", "launch.yaml:1"]),
        ("mount_home: perhaps\n", ["mount_home is 'perhaps', expected true or false"]),
        ("bind: /a\n", ["bind is '/a', expected a list"]),
        ("runtime: dokcer\n", ["No such runtime", "did you mean 'docker'?"]),
        ("site: nowhere\n", ["No such site", "'nowhere'"]),
        ("env: {A=B: c}\n", ["Not the name of a variable", "'A=B'"]),
        ("env: {-S: c}\n", ["Not the name of a variable", "'-S'"]),
    ],
)
def test_mistakes_have_places(home: Path, text: str, args: list[str]) -> None:
    put(home / ".config/aam/launch.yaml", text)
    with pytest.raises(ConfigurationError) as caught:
        read(home)
    assert caught.value.status == 78
    for word in args:
        assert word in str(caught.value)


def test_a_file_that_is_no_text(home: Path) -> None:
    (home / ".config/aam").mkdir(parents=True)
    (home / ".config/aam/launch.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="aam/launch.yaml"):
        read(home)


def test_a_file_of_the_current_folder_is_no_layer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloned repository could bring one that mounts folders and names another image."""
    put(home / "clone/aam-launch.yaml", "image: evil/aam\nbind: ['/:/host:rw']\n")
    monkeypatch.chdir(home / "clone")
    settings = read(home)
    assert (settings.image.value, settings.bind) == ("auto", ())


def test_an_unknown_variable_is_no_silent_typo() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'AAM_LAUNCH_IMAGE'"):
        from_variables({"AAM_LAUNCH_IMAEG": "x"})


def test_switches_lists_and_mappings() -> None:
    binds = {"AAM_LAUNCH_BIND": "/etc/hosts:/x:rw;/b\n/c:/d\n"}
    layer = from_variables({"AAM_LAUNCH_MOUNT_HOME": "yes", **binds})
    settings = merge([layer, from_flags({"--env": ("A=b=c", "D"), "--host-rocm": True})])
    assert settings.mount_home.value
    assert settings.libraries["host_rocm"].value
    assert [bind.value for bind in settings.bind] == ["/etc/hosts:/x:rw", "/b", "/c:/d"]
    assert {n: given.value for n, given in settings.env.items()} == {"A": "b=c", "D": None}
    assert settings.libraries["host_rocm"].source == "command line, --host-rocm"


def test_images_of_a_configuration() -> None:
    text = (
        "images:\n  rocm63: {sif: /s/my.sif}\n  mine: {title: Mine, vendor: amd, archs: [gfx906]}\n"
    )
    found = yaml_entries(text, "x.yaml", SETTING_SPECS)
    catalog = extended(shipped(), (found["images"],))
    changed, added = catalog.require("rocm63"), catalog.require("mine")
    assert (changed.sif, changed.pins["torch"], changed.source) == (
        "/s/my.sif",
        "2.7.1",
        "x.yaml:1",
    )
    assert (added.vendor, added.archs) == ("amd", ("gfx906",))
    wrong = yaml_entries("images:\n  rocm63: {siff: /s}\n", "x.yaml", SETTING_SPECS)
    with pytest.raises(ConfigurationError, match="did you mean 'sif'"):
        extended(shipped(), (wrong["images"],))


@pytest.mark.parametrize("text", ["{pins: 3}", "{archs: 3}", "{arguments: [a]}", "{room: {}}"])
def test_images_with_values_of_the_wrong_type(text: str) -> None:
    found = yaml_entries(f"images: {{mine: {text}}}", "x.yaml", SETTING_SPECS)
    with pytest.raises(ConfigurationError, match=r"images\.mine\..* in x.yaml:1"):
        extended(shipped(), (found["images"],))


@pytest.mark.parametrize("sort", ["fifo", "device", "folder"])
def test_only_regular_files_are_read(home: Path, sort: str) -> None:
    path = home / ".config/aam/launch.yaml"
    path.parent.mkdir(parents=True)
    if sort == "fifo":
        os.mkfifo(path)
    elif sort == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(MissingInput, match="aam/launch.yaml"):
        read(home)


def test_the_home_folder(home: Path) -> None:
    """A shell leaves `~` alone in --image-dir='~/images'."""
    file = home / ".config/aam/launch.yaml"
    put(file, "image_dir: ~/images\nscratch: ~/s\nbind: [~/a:/a, /b]\nimage: ~/own.sif\n")
    flags = {"--image-dir": "~/images", "--bind": ("~/a:/a", "/b")}
    variables = {"AAM_LAUNCH_SCRATCH": "~/s", "AAM_LAUNCH_IMAGE": "~/own.sif"}
    of_file = read(home)
    file.unlink()
    for settings in (of_file, read(home, flags=flags, **variables)):
        assert settings.image_dir.value == f"{home}/images"
        assert settings.scratch.value == f"{home}/s"
        assert [bind.value for bind in settings.bind] == [f"{home}/a:/a", "/b"]
        assert settings.image.value == f"{home}/own.sif"
    for text in ("image_dir: images", "\nscratch: ~other/x", "bind: [a]"):
        put(file, f"{text}\n")
        with pytest.raises(ConfigurationError, match="Not an absolute path: .*launch.yaml:"):
            read(home)


def test_the_site_that_counts_where_none_is_named_gives_settings_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home / "sites/slurm.yaml", "mount_home: yes\n")
    monkeypatch.setattr(config, "SITES", (home / "sites",))
    assert not read(home).mount_home.value
    assert config.read({}, {"HOME": str(home)}, "slurm").mount_home.value
