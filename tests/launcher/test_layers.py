"""Layers of configuration: precedence, sources, and errors with file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aam.contract.errors import ConfigurationError, MissingInput
from aam.contract.records import yaml_entries
from launcher import config
from launcher.plan.catalog import extended, shipped
from launcher.plan.settings import SETTING_SPECS, from_flags, from_variables, merge


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
    changed, added = catalog.image("rocm63"), catalog.image("mine")
    assert changed is not None
    assert added is not None
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
