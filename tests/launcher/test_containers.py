"""Real containers: devices, files, variables, user and signals of a program inside them."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from launcher.engines.sif import record_of
from launcher.images import index
from tests.support.engines import PYTHON, USER, Engines, start
from tests.support.hosts import MI300A, Tree

pytestmark = pytest.mark.container

ENGINES = [("apptainer", USER), ("singularity", USER), ("podman", USER), ("podman", "root"),
           ("docker", USER)]  # fmt: skip
each = pytest.mark.parametrize(("engine", "user"), ENGINES, ids=[f"{e}-{u}" for e, u in ENGINES])
fewer = pytest.mark.parametrize(("engine", "user"), [ENGINES[0], ENGINES[2]])


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    folder = Path("/var/tmp") / f"aam-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        yield start(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def docker_where_there_is_one(request: pytest.FixtureRequest, engines: Engines) -> None:
    call = getattr(request.node, "callspec", None)
    if call and call.params.get("engine") == "docker" and not engines.has_docker():
        pytest.skip("no Docker daemon answers")


@pytest.fixture
def place(engines: Engines) -> Iterator[Path]:
    """A folder of the test user's own, outside of /tmp and of any home."""
    folder = engines.folder / "work"
    folder.mkdir()
    shutil.chown(folder, USER)
    yield folder
    shutil.rmtree(folder)


def study(place: Path, name: str = "table.biom") -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a table")
    for each_path in (path.parent, path):
        shutil.chown(each_path, USER)
    return path


@each
def test_inputs_outputs_and_user(engines: Engines, place: Path, engine: str, user: str) -> None:
    table, out = study(place, "in put/a,b:c'\" ü.biom"), place / "out/deep er"
    words = ["pretrain", "--table", str(table), "--output-dir", str(out)]
    done = engines.launch(engine, *words, user=user)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert said["words"] == words
    assert said["text"][str(table)] == "a table"
    assert said["writable"] == {str(table): False, str(out): True}
    assert out.stat().st_uid == said["uid"] == (0 if user == "root" else 1001)
    assert said["root"] is False
    assert USER not in said["home"]
    assert all(said["caches"].values()), said["caches"]
    assert said["folder"].endswith("/home")


@each
def test_the_environment(engines: Engines, place: Path, engine: str, user: str) -> None:
    hostile = {"PYTHONPATH": f"{engines.folder}/code", "LD_LIBRARY_PATH": "/nowhere",
               "SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "MASTER_ADDR": "node-1", "SECRET": "x",
               "APPTAINER_BIND": "/nothing/here", "APPTAINERENV_EVIL": "1", "http_proxy": "http://x",
               "HIP_VISIBLE_DEVICES": "0"}  # fmt: skip
    words = [f"{name}={value}" for name, value in hostile.items()]
    value = "a,b 'c' \"d\" $HOME `id` \\ \n;é"
    line = [
        "env",
        *words,
        PYTHON,
        "-m",
        "launcher.cli",
        "--runtime",
        engine,
        "--image",
        "cpu",
        "simulate",
        "--output-dir",
        str(place / "out"),
        "--env",
        f"ODD={value}",
        "--env",
        "SECRET",
    ]
    done = engines.run(line, user=user, cwd=engines.folder)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)["environment"]
    assert seen["ODD"] == value
    assert seen["SECRET"] == "x"  # requested
    assert (seen["SLURM_JOB_ID"], seen["SLURM_PROCID"], seen["MASTER_ADDR"]) == ("7", "3", "node-1")
    assert seen["PYTHONNOUSERSITE"] == "1"
    absent = (
        "PYTHONPATH",
        "LD_PRELOAD",
        "EVIL",
        "http_proxy",
        "ROCR_VISIBLE_DEVICES",
        "AAM_IMAGE_DIR",
    )
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
    own = [PYTHON, "-m", "launcher.cli", "--runtime", engine, "--image", "cpu"]
    words = [*own, "simulate", "--output-dir", str(place / "out")]
    seen = []
    for variables in ({}, hostile):
        line = ["env", *(f"{name}={value}" for name, value in variables.items()), *words]
        done = engines.run(line, user=user, cwd=engines.folder)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        for name in ("AAM_PLAN", "SHLVL", "HOSTNAME", "container_uuid"):
            said["environment"].pop(name, None)
        seen.append(said)
    assert seen[1] == seen[0]
    assert seen[1]["uid"] == (0 if user == "root" else 1001)


def test_what_podmans_configuration_adds_is_shown(engines: Engines, place: Path) -> None:
    usual = engines.run(["sh", "-c", "cat $CONTAINERS_CONF"]).stdout
    conf = place / "containers.conf"
    conf.write_text(
        usual.replace(
            "[containers]",
            f"""[containers]
env = ["EVIL=1"]
volumes = ["{place}:/evil"]""",
            1,
        )
    )
    conf.chmod(0o644)
    words = ["simulate", "--output-dir", str(place / "out")]
    own = [PYTHON, "-m", "launcher.cli", "--runtime", "podman", "--image", "cpu"]
    adding = ["env", f"CONTAINERS_CONF={conf}"]
    done = engines.run([*adding, *own, *words], cwd=engines.folder)
    assert json.loads(done.stdout)["environment"]["EVIL"] == "1"  # no option keeps it out
    for shown in ([*own, "explain", *words], [*own[:3], "doctor"]):
        done = engines.run([*adding, *shown], cwd=engines.folder)
        assert f"`env = [EVIL=1]`: {conf} adds it to every container" in done.stdout.replace(
            "`, ", "`: "
        ), done.stderr
        assert f"`volumes = [{place}:/evil]`" in done.stdout


@fewer
def test_symbolic_links_and_relative_paths(
    engines: Engines, place: Path, engine: str, user: str
) -> None:
    table = study(place, "real/table.biom")
    (place / "scratch").symlink_to(place / "real")
    link = place / "link.biom"
    link.symlink_to("scratch/table.biom")
    relative = os.path.relpath(link, engines.folder)
    words = ["pretrain", "--table", relative, "--output-dir", str(place / "scratch/new")]
    said = engines.probe(engine, *words, user=user)
    assert said["words"][2] == str(link)
    assert said["text"][str(link)] == table.read_text()
    assert (place / "real/new").is_dir()


@fewer
def test_a_link_in_an_output_folder(engines: Engines, place: Path, engine: str, user: str) -> None:
    table = study(place, "real/table.biom")
    (place / "out").mkdir()
    shutil.chown(place / "out", USER)
    link = place / "out/link.biom"
    link.symlink_to("../real/table.biom")
    words = ["pretrain", "--table", str(link), "--output-dir", str(place / "out")]
    said = engines.probe(engine, *words, user=user)
    assert said["words"] == words
    assert said["text"] == {str(link): table.read_text()}
    assert said["writable"] == {str(link): False, str(place / "out"): True}


@fewer
def test_a_report_writes_into_its_run(
    engines: Engines, place: Path, engine: str, user: str
) -> None:
    run, table = place / "run", study(place, "elsewhere/metadata.tsv")
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"inputs": {"--metadata": {"path": str(table)}}}))
    shutil.chown(run, USER)
    assert engines.probe(engine, "report", "--run-dir", str(run))["writable"][str(run)] is True
    page = ["--output", str(place / "page/report.html")]
    said = engines.probe(engine, "report", "--run-dir", str(run), *page)
    assert said["writable"][str(run)] is False


GPUS = """
mount --bind {tree}/sys/class /sys/class
chown {owner} /dev/kfd
chmod {mode} /dev/kfd
"""


@pytest.fixture
def gpus(engines: Engines, tmp_path: Path) -> Iterator[Tree]:
    """Four MI300A in sysfs; /dev/kfd and /dev/dri exist while the test runs."""
    tree = Tree(tmp_path / "fake").cpu()
    for number, minor in enumerate((128, 136, 144, 152)):
        tree.amd(MI300A, 0x02, domain=number, minor=minor)
    tmp_path.chmod(0o755)
    nodes = ["/dev/kfd", *(f"/dev/dri/renderD{minor}" for minor in (128, 136, 144, 152))]
    # Device nodes are those of the whole machine, so tests in other processes have to wait. They
    # cannot be in a mount namespace of the test: rootless podman keeps one of its own.
    with open("/var/tmp/aam-test-devices.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for node in nodes:
            # What a test that was killed left behind stands for /dev/null, a GPU does not.
            if os.path.exists(node) and os.stat(node).st_rdev == os.makedev(1, 3):
                os.unlink(node)
        if os.path.exists("/dev/kfd"):
            pytest.skip("there is a real AMD GPU here")
        Path("/dev/dri").mkdir(exist_ok=True)
        try:
            for node in nodes:
                subprocess.run(["mknod", "-m", "666", node, "c", "1", "3"], check=True)
            yield tree
        finally:
            for node in nodes:
                Path(node).unlink(missing_ok=True)
            os.rmdir("/dev/dri")


SET_BY_SLURM = (
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
)  # fmt: skip


@each
@pytest.mark.parametrize(
    ("masks", "nodes", "mask"),
    [
        ({}, (128, 136, 144, 152), "0,1,2,3"),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, (136, 152), "1,0"),
        (dict.fromkeys(SET_BY_SLURM, "2,3"), (144, 152), "0,1"),
    ],
)
def test_the_chosen_gpus_and_one_mask(
    engines: Engines,
    place: Path,
    gpus: Tree,
    engine: str,
    user: str,
    masks: dict[str, str],
    nodes: tuple[int, ...],
    mask: str,
) -> None:
    before = GPUS.format(tree=gpus.root, owner="root:root", mode="666")
    line = [
        "env",
        *(f"{n}={v}" for n, v in masks.items()),
        PYTHON,
        "-m",
        "launcher.cli",
        "pretrain",
        "--table",
        str(study(place)),
        "--runtime",
        engine,
        "--image",
        "rocm63",
        "--output-dir",
        str(place / "out"),
    ]
    done = engines.run(line, user=user, before=before, cwd=engines.folder)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    seen = {path for path in said["devices"] if path.startswith(("/dev/dri", "/dev/kfd"))}
    assert seen == {"/dev/kfd", *(f"/dev/dri/renderD{node}" for node in nodes)}
    assert all(said["devices"][path] for path in seen)
    given = {n: v for n, v in said["environment"].items() if n.endswith(("DEVICES", "ORDINAL"))}
    assert given == {"ROCR_VISIBLE_DEVICES": mask}
    assert not said["libs"]


def test_a_site_cannot_break_the_promises(engines: Engines, place: Path) -> None:
    """`always use rocm`, `always use nv`, `mount hostfs` and `bind path` of a site are answered."""
    conf = place / "apptainer.conf"
    text = Path("/etc/apptainer/apptainer.conf").read_text()
    for key in ("always use nv", "always use rocm", "mount hostfs"):
        text = text.replace(f"{key} = no", f"{key} = yes")
    conf.write_text(f"{text}\nbind path = {engines.state}:/sneaked\n")
    table = study(place)
    words = ["pretrain", "--table", str(table), "--output-dir", str(place / "out")]
    line = engines.launch("apptainer", "--dry-run", *words).stdout
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


def case(backend: str, outcome: str, mask: str = "each", fault: str = "") -> dict[str, str]:
    return {"backend": backend, "dtype": "fp32", "mask": mask, "outcome": outcome, "fault": fault}


FOUND = {
    "format": 1,
    "made": "2026-01-02T03:04:05+00:00",
    "quick": False,
    "seconds": 9.0,
    "identity": {},
    "costs": [],
    "cases": [case("auto", "wrong", fault="first mask for all"), case("math", "right")],
}


def test_a_stack_is_measured_once_and_the_verdict_goes_in(
    engines: Engines, place: Path, gpus: Tree
) -> None:
    """The probe stands for `aam check`, whose own tests are elsewhere: there is no GPU here."""
    before = GPUS.format(tree=gpus.root, owner="root:root", mode="666")
    table = study(place)

    def run(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        variables = [f"AAM_TEST_VERDICT={json.dumps(FOUND)}", f"XDG_CACHE_HOME={place}/cache"]
        own = ["--runtime", "apptainer", "--image", "rocm63"]
        line = ["env", *variables, f"AAM_TEST_STATUS={status}", PYTHON, "-m", "launcher.cli"]
        line += [*own, *words, "--table", str(table), "--output-dir", str(place / "out")]
        return engines.run(line, before=before, cwd=engines.folder)

    told = run("explain", "pretrain")
    assert "not yet measured" in told.stdout, told.stderr
    assert not (place / "cache/aam/check-reports").exists()

    first = run("pretrain", status=1)
    assert first.returncode == 0, first.stderr
    assert "measuring attention once for gfx942" in first.stderr
    assert "Catalog and measurement disagree" in first.stderr
    said = json.loads(first.stdout)
    assert "--attn-implementation" not in said["words"]  # aam chooses from the report
    handed = json.loads(said["environment"]["AAM_CHECK_REPORT"])
    assert handed["cases"][0]["fault"] == "first mask for all"
    assert handed["key"]["arch"] == "gfx942"

    again = run("pretrain")
    assert "measuring" not in again.stderr
    assert json.loads(json.loads(again.stdout)["environment"]["AAM_CHECK_REPORT"]) == handed
    told = run("explain", "pretrain")
    assert "auto wrong (first mask for all), math right" in told.stdout
    assert "measured 2026-01-02" in told.stdout
    assert "AAM_CHECK_REPORT=..." in told.stdout
    assert "measuring" in run("pretrain", "--recheck").stderr
    unchecked = run("pretrain", "--no-check")
    assert "AAM_CHECK_REPORT" not in json.loads(unchecked.stdout)["environment"]

    refused = run("pretrain", "--recheck", status=69)
    assert refused.returncode == 69
    assert "The GPU does not compute" in refused.stderr
    failed = run("pretrain", "--recheck", status=64)
    assert failed.returncode == 0
    assert "The stack could not be measured" in failed.stderr


def test_a_stack_that_failed_its_check_is_not_chosen(
    engines: Engines, place: Path, gpus: Tree
) -> None:
    """The newest image computes nothing right, so the launch takes the next, and later ones too."""
    images = place / "images"
    images.mkdir()
    for name in ("rocm72", "rocm63"):  # two SIFs, so that each has a report of its own
        sif = images / f"{name}.sif"
        sif.write_bytes((engines.images / "cpu.sif").read_bytes() + name.encode())
        index.write(images, name, "sif", record_of(sif))
    shutil.chown(images, USER)
    before = GPUS.format(tree=gpus.root, owner="root:root", mode="666")
    table = study(place)
    broken = {**FOUND, "cases": [case(name, "wrong") for name in ("auto", "math")]}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        verdicts = {"": FOUND, "_rocm72": broken}
        line = ["env", f"XDG_CACHE_HOME={place}/cache", f"AAM_IMAGE_DIR={images}"]
        line += [f"AAM_TEST_VERDICT{image}={json.dumps(v)}" for image, v in verdicts.items()]
        line += [PYTHON, "-m", "launcher.cli", "--runtime", "apptainer", *words]
        line += ["--table", str(table), "--output-dir", str(place / "out")]
        return engines.run(line, before=before, cwd=engines.folder)

    first = run("pretrain")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("measuring attention once") == 2
    assert "A stack is not chosen, because aam check failed with it: rocm72" in first.stderr
    assert json.loads(first.stdout)["environment"]["APPTAINER_NAME"] == "rocm63.sif"

    told = run("explain", "pretrain")
    assert f"{images}/rocm63.sif" in told.stdout
    assert "rocm72 on gfx942: no correct attention backend, measured 2026-01-02" in told.stdout
    named = run("pretrain", "--image", "rocm72")
    assert named.returncode == 69
    assert "aam check failed with it on gfx942" in named.stderr
    assert run("pretrain", "--recheck").stderr.count("measuring attention once") == 2


def test_no_permission_names_the_group(engines: Engines, place: Path, gpus: Tree) -> None:
    before = GPUS.format(tree=gpus.root, owner="root:video", mode="660")
    words = ["pretrain", "--table", str(study(place)), "--image", "rocm63"]
    words += ["--output-dir", str(place / "out")]
    done = engines.launch("apptainer", *words, before=before)
    assert done.returncode == 77
    assert "usermod -aG video" in done.stderr
    assert not (place / "out").exists()


# Every character that a file name can have; the launcher's words are text, so it must decode.
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
    words = ["pretrain", f"--table={table}", "--tree", str(tree), f"--output-dir={out}"]
    given = [word for n, v in enumerate(values) for word in ("--env", f"VALUE{n}={v}")]
    said = engines.probe(engine, *words, *given, user=user)
    pairs = ["--table", str(table), "--tree", str(tree), "--output-dir", str(out)]
    assert said["words"] == ["pretrain", *pairs]
    assert said["text"][str(tree)] == "a table"
    assert [said["environment"][f"VALUE{n}"] for n in range(5)] == values
    assert out.is_dir()


@each
def test_exit_status_and_streams(engines: Engines, place: Path, engine: str, user: str) -> None:
    words = ["simulate", "--output-dir", str(place / "out"), "--samples", "42"]
    done = engines.launch(engine, *words, user=user)
    assert done.returncode == 42, done.stderr
    assert json.loads(done.stdout)["words"] == words


@each
def test_signals_reach_the_program(engines: Engines, place: Path, engine: str, user: str) -> None:
    words = ["--runtime", engine, "--image", "cpu", "simulate", "--asvs", "0"]
    line = [PYTHON, "-m", "launcher.cli", *words, "--output-dir", str(place / "out")]
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
    words = ["pretrain", "--table", str(table), "--output-dir", str(place / "new out")]
    done = engines.launch(engine, "--dry-run", *words, user=user)
    assert done.returncode == 0, done.stderr
    assert not (place / "new out").exists()
    pasted = engines.run(["sh", "-c", done.stdout], user=user, cwd="/")
    assert pasted.returncode == 0, pasted.stderr
    assert json.loads(pasted.stdout)["words"] == words


def test_a_broken_sif_is_known_before_it_starts(engines: Engines, place: Path) -> None:
    whole = (engines.images / "cpu.sif").read_bytes()
    for name, content in (
        ("short", whole[: len(whole) // 2]),
        ("none", b"ELF" * 999),
        ("empty", b""),
    ):
        path = place / f"{name}.sif"
        path.write_bytes(content)
        words = ["simulate", "--output-dir", str(place / "out"), "--image", str(path)]
        done = engines.launch("apptainer", *words)
        assert done.returncode == 66, done.stderr
        assert "Not a complete SIF" in done.stderr


def test_a_folder_in_the_way_is_not_trusted(engines: Engines, place: Path) -> None:
    (place / "aam-1001").mkdir(mode=0o777)
    (place / "aam-1001" / f"local-{os.uname().nodename}").symlink_to("/etc")
    words = ["simulate", "--output-dir", str(place / "out"), "--scratch", str(place)]
    done = engines.launch("apptainer", *words)
    assert done.returncode == 77, done.stderr
    assert shlex.quote(str(place)) in done.stderr or str(place) in done.stderr
