"""Settings of the current folder: without the user's trust only harmless ones apply."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import config, trust
from launcher.plan.settings import LaunchSettings

HOSTILE = """\
image: cpu
runtime: podman
bind: ["/:/host:rw"]
mount_home: true
pass_env: ["*"]
env: {LD_PRELOAD: /tmp/evil.so, PYTHONSTARTUP: /tmp/evil.py}
images: {cpu: {sif: /tmp/evil.sif, reference: evil/aam}}
image_dir: /tmp/evil
scratch: /tmp/evil
host_rocm: true
site: ./evil.yaml
"""
IGNORED = ("bind", "mount_home", "pass_env", "env", "images", "image_dir", "scratch", "host_rocm",
           "site")  # fmt: skip


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A cloned repository with a settings file."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "aam-launch.yaml").write_text(HOSTILE)
    return folder


def read(clone: Path, **variables: str) -> LaunchSettings:
    return config.read({}, {"HOME": str(clone.parent), **variables}, clone)


def launch(clone: Path, *args: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = Path(__file__).parents[2]
    variables = {"HOME": str(clone.parent), "PATH": os.environ["PATH"], "PYTHONPATH": str(code)}
    command = [sys.executable, "-m", "launcher.cli", *args]
    return subprocess.run(command, cwd=folder or clone, env=variables, capture_output=True,
                          text=True, check=False)  # fmt: skip


def test_only_harmless_settings_of_an_untrusted_file_apply(clone: Path) -> None:
    settings = read(clone)
    assert settings.text("image") == "cpu"
    assert settings.text("runtime") == "podman"
    assert {key for key in IGNORED if any("aam-launch.yaml" in e.where for e in settings.given(key))
            } == set()  # fmt: skip
    (finding,) = settings.findings
    assert finding.severity == "warning"
    for number, key in ((3, "bind"), (6, "env"), (7, "images"), (11, "site")):
        assert f"'{key}' ({clone}/aam-launch.yaml:{number})" in finding.evidence
    assert "aam-launch trust" in finding.remedy


@pytest.mark.parametrize(
    "text",
    ["image: ./evil.sif", "image: /tmp/evil.sif", "image: evil/aam:latest", "image: evil.sif",
     "runtime: native", "image: [cpu]", "image: 'cpu\\n'"],
)  # fmt: skip
def test_a_path_a_reference_or_no_container_is_not_harmless(clone: Path, text: str) -> None:
    (clone / "aam-launch.yaml").write_text(text)
    settings = read(clone)
    assert (settings.text("image"), settings.text("runtime")) == ("auto", "auto")
    assert settings.findings


def test_trust_holds_for_this_content_at_this_place(clone: Path, tmp_path: Path) -> None:
    path = clone / "aam-launch.yaml"
    path.write_text("bind: [/data]\n")
    assert launch(clone, "trust").returncode == 0
    settings = read(clone)
    assert [entry.value for entry in settings.given("bind")] == [["/data"]]
    assert settings.findings == ()
    other = tmp_path / "other"
    other.mkdir()
    (other / "aam-launch.yaml").write_text("bind: [/data]\n")
    assert read(other).findings
    path.write_text("bind: [/]\n")
    assert read(clone).findings
    path.write_text("bind: [/data]\n")
    assert not read(clone).findings
    assert launch(clone, "trust", "--revoke").returncode == 0
    assert read(clone).findings


def test_a_record_of_another_user_is_no_trust(clone: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a file to another user takes root")
    path = clone / "aam-launch.yaml"
    file_digest = trust.digest(path, path.read_bytes())
    variables = {"HOME": str(clone.parent)}
    trust.accept(file_digest, variables)
    assert trust.is_trusted(file_digest, variables)
    os.chown(clone.parent / ".local/state/aam/trusted" / file_digest, 65534, 65534)
    assert not trust.is_trusted(file_digest, variables)


@pytest.mark.parametrize("args", [("doctor",), ("images",), ("explain", "--runtime=native",
                                                              "unifrac")])  # fmt: skip
def test_every_command_reports_what_is_ignored(clone: Path, args: tuple[str, ...]) -> None:
    done = launch(clone, *args)
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    assert f"'bind' ({clone}/aam-launch.yaml:3)" in output
    assert "LD_PRELOAD" not in output
    assert "/host" not in output.replace("/hosts", "")


def test_trust_shows_what_it_accepts(clone: Path) -> None:
    done = launch(clone, "trust")
    assert done.returncode == 0
    assert "bind: ['/:/host:rw']" in done.stdout
    assert launch(clone.parent, "trust", folder=clone.parent).returncode == 66
    assert launch(clone, "trust", "--revok").returncode == 64


def test_trust_covers_a_site_file_that_the_settings_name(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "aam-launch.yaml").write_text("site: ./site.yaml\n")
    (clone / "site.yaml").write_text("bind: [/data]\n")
    assert launch(clone, "trust", str(clone), folder=clone.parent).returncode == 0
    monkeypatch.chdir(clone)
    assert not read(clone).findings
    assert [entry.value for entry in read(clone).given("bind")] == [["/data"]]
    (clone / "site.yaml").write_text("bind: ['/:/host:rw']\n")
    assert read(clone).findings
    assert read(clone).given("bind") == ()
