"""Containers started by the launcher: user, environment, streams, signals, sites."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.engines import LAUNCH, USER, Engines
from tests.support.launched_containers import docker_where_there_is_one, each, engines, place, study

__all__ = ["docker_where_there_is_one", "engines", "place"]
pytestmark = pytest.mark.container


@each
def test_inputs_outputs_and_user(engines: Engines, place: Path, engine: str, user: str) -> None:
    table, out = study(place, "in put/a,b:c'\" ü.biom"), place / "out/deep er"
    args = ["pretrain", "--table", str(table), "--output-dir", str(out)]
    done = engines.launch(engine, *args, user=user)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed = json.loads(done.stdout)
    assert printed["args"] == args
    assert printed["text"][str(table)] == "a table"
    assert printed["writable"] == {str(table): False, str(out): True}
    assert out.stat().st_uid == printed["uid"] == (0 if user == "root" else 1001)
    assert printed["root"] is False
    assert USER not in printed["home"]
    assert all(printed["caches"].values()), printed["caches"]
    assert printed["folder"].endswith("/home")


@each
def test_the_environment(engines: Engines, place: Path, engine: str, user: str) -> None:
    hostile = {"PYTHONPATH": f"{engines.folder}/code", "LD_LIBRARY_PATH": "/nowhere",
               "SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "MASTER_ADDR": "node-1", "SECRET": "x",
               "APPTAINER_BIND": "/nothing/here", "APPTAINERENV_EVIL": "1", "http_proxy": "http://x",
               "HIP_VISIBLE_DEVICES": "0"}  # fmt: skip
    args = [f"{name}={value}" for name, value in hostile.items()]
    value = "a,b 'c' \"d\" $HOME `id` \\ \n;é"
    line = ["env", *args, *LAUNCH, "--runtime", engine, "--image", "cpu",
            "example", "--output-dir", str(place / "out"), "--env", f"ODD={value}",
            "--env", "SECRET"]  # fmt: skip
    done = engines.run(line, user=user, cwd=engines.folder)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)["environment"]
    assert seen["ODD"] == value
    assert seen["SECRET"] == "x"  # requested
    assert (seen["SLURM_JOB_ID"], seen["SLURM_PROCID"], seen["MASTER_ADDR"]) == ("7", "3", "node-1")
    assert seen["PYTHONNOUSERSITE"] == "1"
    absent = ("PYTHONPATH", "LD_PRELOAD", "EVIL", "http_proxy", "ROCR_VISIBLE_DEVICES",
              "AAM_IMAGE_DIR")  # fmt: skip
    assert not [name for name in absent if name in seen]
    assert "nowhere" not in seen.get("LD_LIBRARY_PATH", "")
    assert seen["HOME"].endswith("/7-" + os.uname().nodename + "/home")


OF_A_SHELL = {
    "FAKEROOT": "1", "SECURITY": "uid:0", "SCRATCH": "/opt", "FUSESPEC": "container:x /mnt",
    "CWD": "/", "PWD": "/", "HOSTNAME": "evil", "DNS": "1.2.3.4", "NETWORK": "none",
    "OVERLAYIMAGE": "/nothing/here", "BIND": "/etc/shadow:/evil", "WRITABLE_TMPFS": "1",
    "ADD_CAPS": "all", "KEEP_PRIVS": "1", "ALLOW_SETUID": "1", "UNSQUASH": "1", "USERNS": "1",
    "COMPAT": "1", "PID": "1", "IPC": "1", "UTS": "1",
}  # fmt: skip


@each
def test_variables_of_the_shell_do_not_change_the_container(
    engines: Engines, place: Path, engine: str, user: str
) -> None:
    hostile = {f"{prefix}_{name}": value for prefix in ("APPTAINER", "SINGULARITY")
               for name, value in OF_A_SHELL.items()}  # fmt: skip
    hostile |= {"PODMAN_USERNS": "host", "CONTAINER_HOST": "unix:///nothing",
                "APPTAINERENV_LD_PRELOAD": "/evil.so"}  # fmt: skip
    own = [*LAUNCH, "--runtime", engine, "--image", "cpu"]
    args = [*own, "example", "--output-dir", str(place / "out")]
    seen = []
    for variables in ({}, hostile):
        line = ["env", *(f"{name}={value}" for name, value in variables.items()), *args]
        done = engines.run(line, user=user, cwd=engines.folder)
        assert done.returncode == 0, done.stderr
        # A launch that another test runs at the same time has the first private folder.
        printed = json.loads(re.sub(r"(/local-[^/,:\"]*?)-\d+(?=[/,:\"])", r"\1", done.stdout))
        for name in ("AAM_PLAN", "SHLVL", "HOSTNAME", "container_uuid"):
            printed["environment"].pop(name, None)
        seen.append(printed)
    assert seen[1] == seen[0]
    assert seen[1]["uid"] == (0 if user == "root" else 1001)


def test_a_site_cannot_break_the_promises(engines: Engines, place: Path) -> None:
    """`always use rocm`, `always use nv`, `mount hostfs` and `bind path` of a site are answered."""
    conf = place / "apptainer.conf"
    text = Path("/etc/apptainer/apptainer.conf").read_text()
    for key in ("always use nv", "always use rocm", "mount hostfs"):
        text = text.replace(f"{key} = no", f"{key} = yes")
    conf.write_text(f"{text}\nbind path = {engines.state}:/sneaked\n")
    table = study(place)
    args = ["pretrain", "--table", str(table), "--output-dir", str(place / "out")]
    line = engines.launch("apptainer", "--dry-run", *args).stdout
    line = line.replace("apptainer exec", f"apptainer --config {shlex.quote(str(conf))} exec")
    mounts = "cut -d' ' -f5 /proc/self/mountinfo"
    seen = engines.run(["sh", "-c", line]).stdout
    assert json.loads(seen)["libs"] == []
    assert json.loads(seen)["text"] == {str(table): "a table"}
    image = shlex.quote(str(engines.images / "cpu.sif"))
    listing = line.partition(image)[0] + f"{image} sh -c {shlex.quote(mounts)}"
    mounted = engines.run(["sh", "-c", listing]).stdout.split()
    assert str(table) in mounted
    outside = [path for path in mounted if path.startswith(("/sneaked", "/mnt", "/home"))]
    assert not outside


@each
def test_exit_status_and_streams(engines: Engines, place: Path, engine: str, user: str) -> None:
    args = ["example", "--output-dir", str(place / "out"), "--samples", "42"]
    done = engines.launch(engine, *args, user=user)
    assert done.returncode == 42, done.stderr
    assert json.loads(done.stdout)["args"] == args


@each
def test_signals_reach_the_program(engines: Engines, place: Path, engine: str, user: str) -> None:
    args = ["--runtime", engine, "--image", "cpu", "example", "--asvs", "0"]
    line = [*LAUNCH, *args, "--output-dir", str(place / "out")]
    command = engines.command(line, user=user)
    # runuser forks, and a signal is for what it started, as a batch system's is.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=engines.folder, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    status = process.wait(timeout=30)
    process.stdout.close()
    assert status in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert time.monotonic() - began < 9  # before an engine loses patience and kills


@each
def test_a_dry_run_can_be_pasted(engines: Engines, place: Path, engine: str, user: str) -> None:
    table = study(place, "it's, a: table.biom")
    args = ["pretrain", "--table", str(table), "--output-dir", str(place / "new out")]
    done = engines.launch(engine, "--dry-run", *args, user=user)
    assert done.returncode == 0, done.stderr
    assert not (place / "new out").exists()
    pasted = engines.run(["sh", "-c", done.stdout], user=user, cwd="/")
    assert pasted.returncode == 0, pasted.stderr
    assert json.loads(pasted.stdout)["args"] == args
