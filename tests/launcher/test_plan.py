"""Plans: flags for a stack, devices, variables, measured settings, and the launch record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from aam.contract.errors import AamError, ConfigurationError, Unavailable, UsageError
from aam.contract.records import Sourced
from launcher import config
from launcher.detect import detect
from launcher.engines import command, shell_line
from launcher.host.facts import DeviceNode, Host, NativeStack, User
from launcher.launch import path_facts
from launcher.plan.assembly import RECORD, Plan, assemble_plan
from launcher.plan.decision import decide
from launcher.plan.decision import decide as choose
from launcher.plan.mounts import Mount
from launcher.plan.settings import merge
from tests.support.decisions import BUILT, inputs_of
from tests.support.decisions import engine as fact_of
from tests.support.hosts import MI210, MI300A, RX7900, Tree
from tests.support.launches import parse

PREDICT = ["predict", "--table", "/t", "--model", "/m", "--output", "/o/p.tsv"]
PRETRAIN = ["pretrain", "--table", "/d/t.biom", "--output-dir", "/d/out"]
FACTS = tuple(map(fact_of, ("apptainer", "podman", "docker")))


def planned(
    host: Host,
    *args: str,
    native: str = "2.13.0+cpu",
    vendor: str = "cpu",
    terminal: bool = False,
    mounts: tuple[Mount, ...] = (),
) -> Plan:
    from launcher.launch import path_facts

    request = parse(args)
    stack = NativeStack("/usr/bin/python3", (), False, native, vendor)
    paths = path_facts(request, "/d", live=False)
    inputs = inputs_of(
        host, request, native=stack, terminal=terminal, paths=paths, requested_mounts=mounts
    )
    return assemble_plan(inputs, choose(inputs))


def host_of(tree: Tree, **variables: str) -> Host:
    host = detect(tree.root, variables)
    return replace(host, root="/", engines=FACTS, user=User(7, 7, (7, 44)))


@pytest.fixture
def mi300a(tmp_path: Path) -> Host:
    tree = Tree(tmp_path).cpu()
    for number in range(4):
        tree.amd(MI300A, 2, domain=number, minor=128 + 8 * number)
    host = host_of(tree)
    node = DeviceNode("/dev/kfd", 44, "video", 0o660, True)
    return replace(host, nodes=(node,))


def decided(plan: Plan, subject: str) -> list[str]:
    return [decision.value for decision in plan.decisions if decision.subject == subject]


# --- flags


def test_a_stack_with_a_fault_gets_the_flags_that_the_command_has(mi300a: Host) -> None:
    plan = planned(mi300a, *PRETRAIN, "--image", "rocm62")
    assert plan.argv[-3:] == ("--attn-implementation", "math", "--no-gradient-checkpointing")
    reasons = [d.why for d in plan.decisions if d.subject == "flag"]
    assert "ignores the batch index" in reasons[0]
    assert not decided(planned(mi300a, *PRETRAIN, "--image", "rocm63"), "flag")
    predict = planned(mi300a, *PREDICT, "--image", "rocm62")
    assert decided(predict, "flag") == ["--attn-implementation math"]
    simulate = ["example", "--output-dir", "/o/s", "--image", "rocm62"]
    assert decided(planned(mi300a, *simulate), "flag") == []


@pytest.mark.parametrize(
    ("args", "added", "warned"),
    [
        (["--attn-implementation", "flash"], ["--no-gradient-checkpointing"], 1),
        (["--attn_implementation=math"], ["--no-gradient-checkpointing"], 0),
        (["--gradient-checkpointing"], ["--attn-implementation math"], 1),
        (["--no-gradient-checkpointing"], ["--attn-implementation math"], 0),
    ],
)
def test_what_the_user_set_is_obeyed_with_a_warning(
    mi300a: Host, args: list[str], added: list[str], warned: int
) -> None:
    plan = planned(mi300a, *PRETRAIN, "--image", "rocm62", *args)
    assert decided(plan, "flag") == added
    assert len([f for f in plan.findings if f.severity == "warning"]) == warned


def test_a_native_stack_has_the_same_faults(mi300a: Host) -> None:
    args = [*PRETRAIN, "--runtime", "native"]
    plan = planned(mi300a, *args, native="2.5.1+rocm6.2", vendor="amd")
    assert "--attn-implementation math" in decided(plan, "flag")
    assert plan.argv[:3] == ("pretrain", "--table", "/d/t.biom")


def test_a_fault_that_a_variable_avoids(mi300a: Host) -> None:
    plan = planned(mi300a, *PRETRAIN, "--image", "rocm72")
    assert plan.variables["TORCH_BLAS_PREFER_HIPBLASLT"] == "0"
    assert "TORCH_BLAS_PREFER_HIPBLASLT=0" in decided(plan, "variable")
    notes = [f.evidence for f in plan.findings if f.cause == "A known fault of this stack"]
    assert len(notes) == 1
    assert "vllm issue 30167" in notes[0]
    own = planned(mi300a, *PRETRAIN, "--image", "rocm72", "--env", "TORCH_BLAS_PREFER_HIPBLASLT=1")
    assert dict(own.variables)["TORCH_BLAS_PREFER_HIPBLASLT"] == "1"
    # It is of ROCm, whatever the release of PyTorch is.
    for torch, expected in (("2.99.0+rocm7.2", "0"), ("2.99.0+rocm7.14", None)):
        native = planned(mi300a, *PRETRAIN, "--runtime", "native", native=torch, vendor="amd")
        assert native.variables.get("TORCH_BLAS_PREFER_HIPBLASLT") == expected


@pytest.mark.parametrize(
    ("kind", "image", "given"),
    [
        ((110001, 0x747E), "rocm72", "1"),
        ((110001, 0x747E), "rocm64", "1"),
        (RX7900, "rocm72", None),
        (RX7900, "rocm62", None),
    ],
)
def test_experimental_attention_is_requested_where_the_stack_needs_it(
    tmp_path: Path, kind: tuple[int, int], image: str, given: str | None
) -> None:
    """In aotriton 0.13 gfx1101 is experimental and gfx1100 is not, as in 0.10b."""
    host = replace(host_of(Tree(tmp_path).cpu().amd(kind, 2)), nodes=())
    plan = planned(host, *PRETRAIN, "--image", image)
    assert plan.variables.get("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL") == given


# --- the one variable that selects GPUs

ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
MASKS = (ROCR, HIP, CUDA, "GPU_DEVICE_ORDINAL")


@pytest.mark.parametrize(
    ("shell", "args"),
    [
        ({HIP: "1"}, ["--env", HIP]),
        ({CUDA: "1"}, ["--env", CUDA]),
        ({HIP: "0"}, ["--env", f"{HIP}=1"]),
        ({}, ["--env", f"{CUDA}=1"]),
        ({"GPU_DEVICE_ORDINAL": "1"}, []),
        ({f"APPTAINERENV_{ROCR}": "1"}, []),
        ({HIP: "0", f"SINGULARITYENV_{HIP}": "1"}, []),
        ({HIP: "0", f"APPTAINERENV_{HIP}": "0"}, ["--env", f"{HIP}=1"]),
    ],
)
@pytest.mark.parametrize("runtime", ["apptainer", "podman", "native"])
def test_however_gpus_are_selected_one_variable_reaches_the_program(
    tmp_path: Path, shell: dict[str, str], args: list[str], runtime: str
) -> None:
    tree = Tree(tmp_path).cpu().amd(MI210, 1, minor=128).amd(MI210, 2, minor=129)
    host = replace(host_of(tree, **shell), nodes=())
    args = [*PRETRAIN, "--runtime", runtime, *args]
    plan = planned(host, *args, native="2.7.1+rocm6.3", vendor="amd")
    assert [gpu.index for gpu in plan.gpus] == [2]
    # In a container it counts the nodes that are there.
    inside = plan.environment(shell) if runtime == "native" else plan.variables
    assert {n: v for n, v in inside.items() if n in MASKS} == {
        ROCR: "1" if runtime == "native" else "0"
    }
    words = [word for word in command(plan) if word.partition("=")[0].endswith(MASKS)]
    assert words == ([] if runtime == "native" else [f"{ROCR}=0"])


def test_measured_variables_select_no_gpu() -> None:
    tuned = {"tuned": Sourced({"gfx942": {"env": {HIP: "1"}}}, "launch.yaml:1")}
    with pytest.raises(ConfigurationError, match=f"{HIP} of tuned.gfx942.env in launch.yaml:1"):
        merge([tuned])


# --- commands without the network

TRAIN = ["train", "--table", "/d/t", "--metadata", "/d/m", "--metadata-column", "y",
         "--output-dir", "/d/out"]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "image"),
    [
        ([], "cpu"),
        (["--members", "kernel"], "cpu"),
        (["--device", "cuda"], "cpu"),
        (["--members", "kernel", "transformer"], "rocm64"),
        (["--pretrained-encoder", "/d/run"], "rocm64"),
        (["--pretrained-encoder", "/d/run", "--device", "cpu"], "cpu"),
    ],
)
def test_training_takes_gpus_for_the_network_alone(
    mi300a: Host, more: list[str], image: str
) -> None:
    plan = planned(mi300a, *TRAIN, *more)
    assert plan.image == image
    assert bool(plan.devices) == (image != "cpu")


def test_what_is_measured_is_the_network(mi300a: Host) -> None:
    args = ("tune", "--output-dir", "/d/t", *TRAIN, "--members", "kernel")
    assert planned(mi300a, *args).image == "rocm64"


def test_several_processes_are_for_the_network_alone(mi300a: Host) -> None:
    with pytest.raises(UsageError, match="`train` without the transformer is one process"):
        planned(mi300a, *TRAIN, "--gpus", "2")
    assert "--processes" in planned(mi300a, *TRAIN, "--members", "transformer", "--gpus", "2").argv


# --- engines


def test_apptainer(mi300a: Host) -> None:
    argv = command(planned(mi300a, *PRETRAIN))
    assert argv[:2] == ("/usr/bin/apptainer", "exec")
    assert {"--contain", "--cleanenv", "--no-eval", "--no-home", "--no-rocm"} < set(argv)
    assert "type=bind,source=/dev/dri/renderD152,destination=/dev/dri/renderD152" in argv
    assert "type=bind,source=/d/t.biom,destination=/d/t.biom,ro" in argv
    assert argv[argv.index("/i/rocm64.sif") + 1] == "/usr/bin/env"
    assert "ROCR_VISIBLE_DEVICES=0,1,2,3" in argv
    assert argv[argv.index("aam") :] == ("aam", *PRETRAIN)
    forced = command(planned(mi300a, *PRETRAIN, "--host-rocm"))
    assert "--rocm" in forced
    assert "--no-rocm" not in forced


def test_podman_and_docker(mi300a: Host) -> None:
    podman = command(planned(mi300a, *PRETRAIN, "--runtime", "podman"))
    assert {"--userns=keep-id", "--group-add=keep-groups", "--pull=never"} < set(podman)
    docker = command(planned(mi300a, *PRETRAIN, "--runtime", "docker", terminal=True))
    assert {"--user=7:7", "--group-add=44", "--tty"} < set(docker)
    for argv in (podman, docker):
        devices = [argv[n + 1] for n, word in enumerate(argv) if word == "--device"]
        assert devices == ["/dev/kfd", *(f"/dev/dri/renderD{n}" for n in (128, 136, 144, 152))]
        assert "--tty" not in podman


def test_nvidia_support_is_the_engines_own(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 1, 0, "A100").nvidia(0x20B2, 2, 1, "A100")
    host = replace(
        host_of(tree.nvidia_driver("535.1"), CUDA_VISIBLE_DEVICES="1"),
        cdi=("nvidia",),
    )
    for engine, option in (
        ("apptainer", "--nv"),
        ("podman", "nvidia.com/gpu=all"),
        ("docker", "--gpus"),
    ):
        argv = command(planned(host, *PRETRAIN, "--runtime", engine))
        assert option in argv
        assert "CUDA_VISIBLE_DEVICES=GPU-00000002-0000-0000-0000-000000000000" in argv


def test_natively_one_mask_counts_what_may_be_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu()
    for number in range(4):
        tree.amd(MI210, number + 1, readable=number > 1)
    host = host_of(
        tree, ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="1"
    )
    plan = planned(host, *PRETRAIN, "--runtime", "native", native="2.7.1+rocm6.3", vendor="amd")
    environment = plan.environment(host.environment)
    masks = {n: v for n, v in environment.items() if n.endswith("VISIBLE_DEVICES")}
    assert masks == {"ROCR_VISIBLE_DEVICES": "1"}
    assert "-u HIP_VISIBLE_DEVICES" in shell_line(plan)


# --- variables and the record


def test_what_is_kept_out_is_said(mi300a: Host) -> None:
    variables = {"PYTHONPATH": "/x", "VIRTUAL_ENV": "/v", "PASSWORD": "x", "SLURM_PROCID": "0"}
    plan = planned(replace(mi300a, environment=variables), *PRETRAIN, "--env", "VIRTUAL_ENV")
    assert decided(plan, "kept out") == ["PYTHONPATH"]
    inside = plan.variables
    assert inside["VIRTUAL_ENV"] == "/v"
    assert inside["SLURM_PROCID"] == "0"
    assert "PASSWORD" not in inside
    assert inside["MIOPEN_USER_DB_PATH"] == inside["MIOPEN_CUSTOM_CACHE_DIR"]
    assert inside["MIOPEN_USER_DB_PATH"] in plan.folders


def test_an_override_of_the_arch_is_warned_of(mi300a: Host) -> None:
    host = replace(mi300a, environment={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"})
    plan = planned(host, *PRETRAIN)
    found = [str(finding) for finding in plan.findings if finding.severity == "warning"]
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0, the kernel reports gfx942" in found[0]


def test_the_record_is_enough_to_run_again(mi300a: Host) -> None:
    plan = planned(mi300a, *PRETRAIN, "--image", "rocm62", "--env", "NCCL_DEBUG=INFO")
    stored = json.loads(plan.variables[RECORD])
    assert stored["arguments"] == PRETRAIN[1:]
    assert stored["launcher_options"] == {"--image": ["rocm62"], "--env": ["NCCL_DEBUG=INFO"]}
    assert (stored["image"], stored["digest"]) == ("rocm62", "sha256:1")
    assert stored["stack"] == "torch 2.5.1"
    assert len(stored["gpus"]) == 4
    assert RECORD in dict(planned(mi300a, "example", "--output-dir", "/o/s").variables)
    printed = ("evaluate", "--predictions", "/i/p", "--metadata", "/i/m", "--metadata-column", "c")
    assert dict(planned(mi300a, *printed).variables)[RECORD]  # it may name an output


def test_a_record_fits_into_a_variable(mi300a: Host) -> None:
    many = tuple(Mount(p := f"/{'x' * 40}/{n}", p, False, "", "") for n in range(2000))
    stored = dict(planned(mi300a, *PRETRAIN, mounts=many).variables)[RECORD]
    assert len(stored) < 131_072
    assert json.loads(stored)["mounts"] is None


def test_mig_without_a_choice_is_warned_of(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 1, 0, "A100", mig=["gi1/ci0", "gi2/ci0"])
    plan = planned(host_of(tree.nvidia_driver("535.1")), *PRETRAIN)
    assert any("Only one MIG instance" in str(finding) for finding in plan.findings)


def test_every_decision_says_why_and_from_where(mi300a: Host) -> None:
    plan = planned(mi300a, *PRETRAIN, "--image", "rocm62")
    assert all(d.subject and d.value and d.why and d.source for d in plan.decisions)
    assert set(decided(plan, "mount")) >= {"/d/t.biom ro", "/d/out rw"}


def test_the_token_of_slurm_stays_outside_and_secrets_out_of_the_record(mi300a: Host) -> None:
    host = replace(mi300a, environment={"SLURM_JWT": "x1", "SLURM_NODEID": "0"})
    words = ["MY_TOKEN=x2", "PW=x3", "my_pwd=x4", "AUTHORIZATION=x5", "ANY=x6", "OMP_WAIT_POLICY=y",
             "NCCL_NET=http://ada:x7@host"]  # fmt: skip
    given = [word for value in words for word in ("--env", value)]
    plan = planned(host, *PRETRAIN, *given)
    variables = plan.variables
    assert "SLURM_JWT" not in variables
    assert (variables["MY_TOKEN"], variables["SLURM_NODEID"]) == ("x2", "0")
    stored = json.loads(variables[RECORD])["launcher_options"]["--env"]
    names = ["MY_TOKEN", "PW", "my_pwd", "AUTHORIZATION", "ANY", "OMP_WAIT_POLICY=y", "NCCL_NET"]
    assert stored == names
    shown = {decision.value for decision in plan.decisions}
    assert {name if "=" in name else f"{name}=..." for name in names} <= shown
    printed = " ".join([*command(plan), *shown, *decided(plan, "variable"), variables[RECORD]])
    assert not [number for number in range(2, 8) if f"x{number}" in printed]


def test_a_mount_below_dev_takes_the_dev_of_the_host(mi300a: Host) -> None:
    for engine, takes in (("apptainer", True), ("podman", False)):
        plain = planned(mi300a, *PRETRAIN, "--runtime", engine)
        shm = planned(mi300a, *PRETRAIN[:3], "--output-dir", "/dev/shm/out", "--runtime", engine)
        assert (plain.host_devices, shm.host_devices) == (False, takes)
    other = (Mount("/data", "/dev/shm/data", False, "requested", "command line, --bind"),)
    with pytest.raises(ConfigurationError, match="'/data' at '/dev/shm/data' .*outside of /dev"):
        planned(mi300a, *PRETRAIN, mounts=other)


@pytest.mark.parametrize("engine", ["apptainer", "singularity", "podman", "docker"])
def test_what_a_user_sets_stands_in_no_command_line(mi300a: Host, engine: str) -> None:
    """Other users see command lines with `ps`, and the record of a run is read by others."""
    facts = (*FACTS, fact_of("singularity"))
    host = replace(mi300a, engines=facts, environment={"SLURM_PASSWORD": "hunter2"})
    args = (*PRETRAIN, "--runtime", engine, "--image", "rocm63", "--env", "MY_TOKEN=s3cret")
    built = tuple(replace(image, engines=(engine,)) for image in BUILT)
    request = parse(args)
    inputs = inputs_of(host, request, built=built)
    plan = assemble_plan(inputs, choose(inputs))
    words = " ".join(command(plan))
    assert "s3cret" not in words + plan.variables[RECORD]
    assert "hunter2" not in words
    prefix = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}.get(engine, "")
    given = plan.environment({"PATH": "/bin"})
    assert given[f"{prefix}MY_TOKEN"] == "s3cret"
    assert given[f"{prefix}SLURM_PASSWORD"] == "hunter2"
    assert prefix or "--env MY_TOKEN" in words


def test_a_value_that_apptainer_loses_is_set_inside(mi300a: Host) -> None:
    args = (*PRETRAIN, "--runtime", "apptainer", "--image", "rocm63", "--env")
    words = command(planned(mi300a, *args, "NAME=a\x80b"))
    assert "NAME=a\x80b" in words[words.index("/usr/bin/env") :]
    with pytest.raises(ConfigurationError, match=r"MY_TOKEN has U\+0080"):
        planned(mi300a, *args, "MY_TOKEN=a\x80b")


def test_podman_without_crun_loses_the_groups_that_own_gpus(mi300a: Host) -> None:
    podman = replace(FACTS[1], loses_groups="crun, the runtime that keeps them, is absent")
    args = (*PRETRAIN, "--runtime", "podman", "--image", "rocm63")
    assert command(planned(mi300a, *args))[1:4] == ("--runtime", "crun", "run")
    with pytest.raises(Unavailable, match="/dev/kfd belongs to group video; crun, the runtime"):
        planned(replace(mi300a, engines=(podman,)), *args)


# --- options and variables that were measured on a GPU architecture


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


def tuned(host: Host, file: Path, text: str, *args: str) -> Plan:
    file.write_text(text)
    request = parse((*args, "--site", str(file)))
    settings = config.read(request.launcher_options, {"HOME": str(file.parent)})
    paths = path_facts(request, "/d", live=False)
    inputs = inputs_of(host, request, settings, paths=paths, catalog=config.catalog(settings))
    return assemble_plan(inputs, decide(inputs))


def test_a_file_of_an_acceptance_gives_defaults_and_is_named(apu: Host, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    plan = tuned(apu, file, FILE, *PRETRAIN)
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
    plan = tuned(apu, file, FILE, *PRETRAIN, *own)
    assert decided(plan, "flag") == ["--mixed-precision bf16"]
    assert plan.variables["HSA_XNACK"] == "0"
    (tmp_path / "own.yaml").write_text("batch-size: 4\n")
    configured = tuned(apu, file, FILE, *PRETRAIN, "--config", str(tmp_path / "own.yaml"))
    assert "--batch-size 64" not in decided(configured, "flag")
    fault = tuned(apu, file, FILE, *PRETRAIN, "--image", "rocm62")
    assert "--no-gradient-checkpointing" in fault.argv
    assert "--gradient-checkpointing" not in fault.argv


def test_only_runs_on_the_architecture_get_them(apu: Host, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    assert decided(tuned(apu, file, FILE, *PRETRAIN, "--device", "cpu"), "flag") == [
        "--batch-size 8"
    ]
    assert decided(tuned(apu, file, FILE, *PREDICT), "flag") == ["--batch-size 64"]
    for measures in (
        ("check",),
        ("golden", "generate", "/o/golden"),
        ("tune", "--output-dir", "/o/t", *PRETRAIN[:3]),
    ):
        plan = tuned(apu, file, FILE, *measures)
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
        tuned(apu, file, f"tuned: {text}\n", *PRETRAIN)
    assert sentence.format(f=file) in str(caught.value)


def test_a_default_that_the_host_sets_too_reaches_the_container(apu: Host, tmp_path: Path) -> None:
    """The variable is of no pattern that lets it in."""
    text = "tuned:\n  gfx942:\n    env: {OF_NO_PATTERN: 1}\n"
    host = replace(apu, environment={**apu.environment, "OF_NO_PATTERN": "2"})
    plan = tuned(host, tmp_path / "s.yaml", text, *PRETRAIN)
    assert plan.variables["OF_NO_PATTERN"] == "2"
    assert dict(tuned(apu, tmp_path / "s.yaml", text, *PRETRAIN).variables)["OF_NO_PATTERN"] == "1"
