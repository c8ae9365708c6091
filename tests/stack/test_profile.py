"""Kernel profiles: the same kernels from every format, and errors for damaged files."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aam.contract.errors import DataError
from aam.stack.profile import (
    KernelProfile,
    KernelTime,
    category,
    precisions,
    read_profile,
    shares,
    verdict,
)
from tests.support.commands import aam

GEMM = "Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x1"
ADD = "void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>, Array<char*, 2> >(int)"
CALLS = [(GEMM, 1_000, 5_000), (ADD, 5_500, 6_500), (GEMM, 7_000, 9_000)]
"""Two matrix products of 4 and 2 microseconds, one addition of 1, one microsecond idle of 8."""
KERNELS = (KernelTime(GEMM, 2, 6_000), KernelTime(ADD, 1, 1_000))


def rocprof(path: Path) -> None:
    rows = [f'{i},"{n} [clone .kd]",0,{s},{e},{e - s}' for i, (n, s, e) in enumerate(CALLS)]
    path.write_text(
        '"Index","KernelName","gpu-id","BeginNs","EndNs","DurationNs"\n' + "\n".join(rows)
    )


def rocprof_statistics(path: Path) -> None:
    rows = [f'"{k.name}.kd",{k.calls},{k.total_ns},{k.total_ns},50.0' for k in KERNELS[::-1]]
    path.write_text('"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n' + "\n".join(rows))


def rocprofv3_trace(path: Path) -> None:
    rows = [f'"KERNEL_DISPATCH","Agent 2","{n}",{s},{e}' for n, s, e in CALLS]
    header = '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"'
    path.write_text("\n".join([header, *rows]))


def chrome_trace(path: Path) -> None:
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": "kernel", "name": n, "ts": s / 1e3, "dur": (e - s) / 1e3}
        for n, s, e in CALLS
    ]
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 50.0})
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


def nsys(path: Path) -> None:
    rows = [f'50.0,"{k.total_ns:,.0f}",{k.calls},"{k.name}"' for k in KERNELS]
    header = "Time (%),Total Time (ns),Instances,Name"
    path.write_text("\n".join(["Generating SQLite file x.sqlite", "", header, *rows]))


FORMATS: dict[str, Callable[[Path], None]] = {
    "rocprof": rocprof,
    "rocprof statistics": rocprof_statistics,
    "rocprofv3 kernel trace": rocprofv3_trace,
    "torch.profiler trace": chrome_trace,
    "nsys statistics": nsys,
}


@pytest.mark.parametrize("source", FORMATS)
def test_every_format_gives_the_same_kernels(source: str, tmp_path: Path) -> None:
    FORMATS[source](tmp_path / "profile")
    profile = read_profile(tmp_path / "profile")
    assert profile.source == source
    assert [(k.name, k.calls) for k in profile.kernels] == [(k.name, k.calls) for k in KERNELS]
    assert [k.total_ns for k in profile.kernels] == pytest.approx([k.total_ns for k in KERNELS])
    if "statistics" in source:
        assert profile.idle is None
    else:
        assert profile.idle == pytest.approx(1 / 8)


def test_category_and_precision_follow_from_the_name() -> None:
    categories = {
        GEMM: "matrix product",
        ADD: "elementwise",
        "attn_fwd": "attention",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "communication",
        "__amd_rocclr_copyBuffer": "memory copy",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>": "optimizer",
        "SubTensorOpWithScalar1d": "other",
    }
    assert {name: category(name) for name in categories} == categories
    products = {
        "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x128": "bf16",
        "Cijk_Alik_Bljk_HHS_BH_Bias_HA_S_SAV": "fp16",
        GEMM: "fp32",
        "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128": "bf16",
        "void mul_mat_q<(ggml_type)2, 128, false>(char const*, float*)": "unknown",
    }
    for name, precision in products.items():
        assert precisions(KernelProfile("", (KernelTime(name, 1, 1.0),))) == {precision: 1.0}


@pytest.mark.parametrize(
    ("kernels", "idle", "limit"),
    [
        ([("gemm", 1000, 1e6)], 0.5, "launch-bound"),
        ([("gemm", 10, 1e6)], 0.5, "data-bound"),
        ([("gemm", 10, 6e5), ("rccl_main", 5, 4e5)], 0.0, "communication"),
        ([("gemm", 10, 6e5), ("attn_fwd", 5, 4e5)], 0.0, "attention-bound"),
        ([("gemm", 10, 4e5), ("elementwise_kernel", 5, 6e5)], 0.1, "memory-bound"),
        ([("gemm", 10, 9e5), ("x", 5, 1e5)], 0.1, "compute-bound"),
        ([("x", 5, 1e5)], 0.1, "mixed"),
    ],
)
def test_the_verdict_names_the_limit(
    kernels: list[tuple[str, int, float]], idle: float, limit: str
) -> None:
    times = tuple(KernelTime(*kernel) for kernel in kernels)
    assert verdict(KernelProfile("", times, 1e6, 1e6 * (1 - idle)))[0] == limit


def test_two_profiles_are_compared_by_category(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rocprofv3_trace(tmp_path / "rocm.csv")
    chrome_trace(tmp_path / "cuda.json")
    assert aam("profile", tmp_path / "rocm.csv", "--compare", tmp_path / "cuda.json") == 0
    shown = capsys.readouterr().out
    assert "GPU idle between the first and the last kernel: 12%." in shown
    assert [line.split() for line in shown.splitlines()][-2:] == [
        ["matrix", "product", "0.006", "0.006", "1.00"],
        ["elementwise", "0.001", "0.001", "1.00"],
    ]


BAD = {
    "a rocpd database": (b"SQLite format 3\0" + bytes(80), "rocpd database is not read"),
    "unknown": (b"a,b\n1,2\n", "Not the output of a known profiler"),
    "cut short": (b'{"traceEvents": [{"ph": "X", "cat": "ker', "damaged or incomplete"),
    "no kernels": (b'{"traceEvents": []}', "has no kernels"),
    "cut gzip": (gzip.compress(b'{"traceEvents": []}')[:-6], "damaged or incomplete"),
    "host API": (b'"Name","Calls","TotalDurationNs"\n"hipFree",1,5\n', "Calls of the host's API"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_no_profile_are_refused(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    (tmp_path / "profile").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_profile(tmp_path / "profile")


GENUINE = Path(os.environ.get("AAM_SHARED_DATA", "/nonexistent")) / "profiles"


STATISTICS, TRACE = "rocprofv3 statistics", "torch.profiler trace"
PRODUCTS, RANKS = "matrix product", "communication"


@pytest.mark.skipif(not GENUINE.is_dir(), reason="AAM_SHARED_DATA has no profiles")
@pytest.mark.parametrize(
    ("file", "source", "calls", "largest", "limit"),
    [
        ("rocprof_v1_results.stats.mi250.csv", "rocprof statistics", 1004, "other", "mixed"),
        ("rocprof_v1_results.mi250.head.csv", "rocprof", 5, "other", "mixed"),
        ("rocprofv3_kernel_stats_resnet_ddp_mi300.csv", STATISTICS, 16185, RANKS, RANKS),
        ("rocprofv3_kernel_trace_rocm62.csv", "rocprofv3 kernel trace", 7, "other", "mixed"),
        ("rocprofv3_memory_copy_trace_rocm62.csv", "rocprofv3 copy trace", 2, "memory copy",
         "data-bound"),
        ("torch_trace_bert_small_mi300x_rocm64.json.gz", TRACE, 61, PRODUCTS, "launch-bound"),
        ("torch_trace_gpu_only_mi210_rocm64.json.gz", TRACE, 562, PRODUCTS, "compute-bound"),
    ],
)  # fmt: skip
def test_genuine_profiles(file: str, source: str, calls: int, largest: str, limit: str) -> None:
    profile = read_profile(GENUINE / file)
    assert (profile.source, profile.calls) == (source, calls)
    assert next(iter(shares(profile))) == largest
    assert verdict(profile)[0] == limit


def test_a_trace_of_a_cpu_counts_each_operation_without_those_it_calls(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::{name}", "tid": thread, "ts": at, "dur": time}
        for name, thread, at, time in (
            ("addmm", 1, 2, 6), ("linear", 1, 0, 10), ("addmm", 1, 15, 5), ("gelu", 2, 4, 8)
        )
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = read_profile(path)
    assert found.device == "CPU"
    assert found.kernels == (
        KernelTime("aten::addmm", 2, 11_000),
        KernelTime("aten::gelu", 1, 8_000),
        KernelTime("aten::linear", 1, 4_000),
    )
    assert found.span_ns == 20_000 and found.busy_ns == 17_000
    assert shares(found)["matrix product"] == pytest.approx(11 / 23)
    assert verdict(found)[0] == "compute-bound"
    assert verdict(found, wait=0.4)[0] == "data-bound"


@pytest.mark.slow
def test_profile_of_a_command_records_some_of_its_steps(
    tmp_path: Path, study_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--embedding-dim", "8", "--attention-heads", "2", "--attention-layers", "1")
    command = (
        "profile", "--profile-steps", "2", "--warmup-steps", "1",
        "--output-dir", tmp_path / "profile",
    )  # fmt: skip
    measured = (
        "pretrain", "--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk", *sizes,
        "--batch-size", "8", "--device", "cpu",
    )  # fmt: skip
    mine = tmp_path / "profile" / "running" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert aam(*command, "--json", *measured) == 0
    assert mine.read_text() == "mine"
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["wait"] < 1 and found["limit"]
    assert "matrix product" in found["shares"]
    assert "aten::mm" in [one["name"] for one in found["kernels"]]
    assert aam("profile", tmp_path / "profile" / "trace.json.gz") == 0
    assert "Outside operations of PyTorch" in capsys.readouterr().out
    assert aam(*command, *measured) == 73
    assert aam(*command, "--overwrite", *measured, "--batch-size", "3000") == 65
    assert "The command fails: it ended with status 65" in capsys.readouterr().err
