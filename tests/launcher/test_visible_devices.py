"""Visible devices: every combination of the vendors' variables gives one list of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aam.contract.errors import ConfigurationError
from aam.contract.records import Sourced
from launcher.detect import detect
from launcher.host.facts import Gpu, GpuInstance, Slurm
from launcher.plan.visible_devices import DeviceSelection, masks_of, select, value_for
from tests.support.decisions import decide, name_of
from tests.support.hosts import MI300A, Tree

ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
ORDINAL = "GPU_DEVICE_ORDINAL"


def gpus(count: int, hidden: tuple[int, ...] = ()) -> list[Gpu]:
    return [
        Gpu("amd", n + 2, None if n in hidden else "gfx942", "MI300A", f"{n:04x}:02:00.0",
            (f"/dev/dri/renderD{128 + 8 * n}",), f"GPU-{n:016x}", readable=n not in hidden)
        for n in range(count)
    ]  # fmt: skip


def given_by(shell: dict[str, str]) -> dict[str, Sourced[str]]:
    return masks_of(shell, {}, ())


def chosen(
    masks: dict[str, str], count: int = 8, hidden: tuple[int, ...] = (), slurm: str | None = None
) -> list[int]:
    allocation = Slurm("1", tuple(map(int, slurm.split(","))), 1) if slurm else None
    return [
        gpu.index - 2
        for gpu in select("amd", gpus(count, hidden), given_by(masks), allocation).gpus
    ]


FIRST = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("masks", "hidden", "slurm", "expected"),
    [
        # no variable
        ({}, (), None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({}, FIRST, None, [4, 5, 6, 7]),
        ({}, (), "2,3", [2, 3]),  # allocated, not confined, no mask
        ({}, FIRST, "4,5,6,7", [4, 5, 6, 7]),
        # one mask, whole node
        ({ROCR: "3,1"}, (), None, [3, 1]),
        ({HIP: "3"}, (), None, [3]),
        ({CUDA: "3"}, (), None, [3]),
        ({ROCR: "0-2"}, (), None, [0, 1, 2]),
        ({ROCR: " 1 , 2 "}, (), None, [1, 2]),
        ({ROCR: "1,1"}, (), None, [1]),
        ({ROCR: "GPU-0000000000000005"}, (), None, [5]),
        ({ROCR: "gpu-0000000000000005,1"}, (), None, [5, 1]),
        ({ROCR: ""}, (), None, []),
        ({ROCR: "-1"}, (), None, []),
        ({ROCR: "NoDevFiles"}, (), None, []),
        ({ROCR: "all"}, (), None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({HIP: ""}, (), None, [0, 1, 2, 3, 4, 5, 6, 7]),  # HIP takes an empty one for none
        # the same value in two or three variables, as Slurm sets them
        ({ROCR: "4,5", HIP: "4,5"}, (), None, [4, 5]),
        ({ROCR: "4,5", HIP: "4,5", CUDA: "4,5"}, (), "4,5", [4, 5]),
        ({ROCR: "0,1", CUDA: "0,1"}, (), None, [0, 1]),
        # one inside the other
        ({ROCR: "4,5,6", HIP: "0,2"}, (), None, [4, 6]),
        ({ROCR: "4,5", HIP: "4"}, (), None, [4]),  # cannot count what is left: the node's number
        ({HIP: "1", CUDA: "2"}, (), None, [1]),  # CUDA's is not read where HIP's is set
        ({ORDINAL: "3"}, (), None, [3]),
        ({HIP: "1", ORDINAL: "2"}, (), None, [1]),
        # confined: numbers count what may be read
        ({ROCR: "0,1,2,3"}, FIRST, None, [4, 5, 6, 7]),
        ({ROCR: "1"}, FIRST, None, [5]),
        # confined, but the node's numbers
        ({ROCR: "4,5,6,7"}, FIRST, None, [4, 5, 6, 7]),
        ({ROCR: "6"}, FIRST, "4,5,6,7", [6]),
        ({ROCR: "1,2"}, (0, 3, 4, 5, 6, 7), "1,2", [1, 2]),
        ({ROCR: "0,1"}, (0, 3, 4, 5, 6, 7), "1,2", [1, 2]),
        ({ROCR: "1"}, (0, 3, 4, 5, 6, 7), "1,2", [2]),
    ],
)
def test_combinations(
    masks: dict[str, str], hidden: tuple[int, ...], slurm: str | None, expected: list[int]
) -> None:
    assert chosen(masks, hidden=hidden, slurm=slurm) == expected


@pytest.mark.parametrize(
    ("masks", "hidden"),
    [
        ({ROCR: "8"}, ()),
        ({ROCR: "x"}, ()),
        ({ROCR: "GPU-ffff"}, ()),
        ({ROCR: "GPU-00"}, ()),  # the beginning of eight names
        ({ROCR: "0,4"}, FIRST + (6,)),  # node's numbers, and 0 belongs to another job
        ({ROCR: "4,5", HIP: "7"}, ()),
    ],
)
def test_nonsense_is_named(masks: dict[str, str], hidden: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        chosen(masks, hidden=hidden)
    assert next(iter(masks)) in str(caught.value)


@pytest.mark.parametrize(
    ("mask", "hidden", "warned"),
    [("0", (), True), ("2", (), False), ("1,2", (), True), ("0", FIRST, False)],
)
def test_gpus_outside_of_the_allocation_are_a_warning(
    mask: str, hidden: tuple[int, ...], warned: bool
) -> None:
    slurm = Slurm("1", (4, 5) if hidden else (2, 3), 1)
    selection = select("amd", gpus(8, hidden), given_by({ROCR: mask}), slurm)
    assert [r.cause for r in selection.remarks] == warned * ["GPUs outside of the Slurm allocation"]


def test_the_story() -> None:
    summary = select("amd", gpus(8, FIRST), given_by({ROCR: "0-3"}), None).summary
    assert summary == (
        "8 listed, 4 readable, ROCR_VISIBLE_DEVICES=0-3 → 4 selected "
        "(renderD160, renderD168, renderD176, renderD184)"
    )


@given(st.integers(1, 12), st.data())
def test_a_mask_written_for_a_program_means_the_same_there(count: int, data: st.DataObject) -> None:
    """What the one mask selects of what the program enumerates are the GPUs that were chosen."""
    hidden = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    every = gpus(count, tuple(hidden))
    left = count - len(hidden)
    order = data.draw(st.lists(st.integers(0, left - 1), unique=True, min_size=1))
    names = data.draw(st.sampled_from([(ROCR,), (HIP,), (CUDA,), (ROCR, HIP), (ROCR, HIP, CUDA)]))
    mask = ",".join(map(str, order))
    selection = select("amd", every, given_by(dict.fromkeys(names, mask)), None)
    assert len(selection.gpus) == len(order)
    for visible in (selection.ours, tuple(sorted(selection.gpus, key=lambda gpu: gpu.index))):
        inside = value_for(selection, visible)
        renumbered = [replace(gpu, readable=True) for gpu in visible]
        again = select("amd", renumbered, given_by({ROCR: inside}), None)
        assert [gpu.index for gpu in again.gpus] == [gpu.index for gpu in selection.gpus]


def test_mixed_kinds_are_named_instead_of_counted() -> None:
    every = gpus(2)
    every[1] = replace(every[1], arch="gfx90a")
    selection = select("amd", every, given_by({ROCR: "1"}), None)
    assert value_for(selection, every) == "GPU-0000000000000001"


def test_nvidia_is_named_by_uuid() -> None:
    cards = [Gpu("nvidia", n, "sm_80", "A100", f"0:{n}", uuid=f"GPU-{n}abc") for n in range(4)]
    selection = select("nvidia", cards, given_by({CUDA: "2,0", ROCR: "7"}), None)
    assert value_for(selection, cards) == "GPU-2abc,GPU-0abc"
    assert [g.index for g in select("nvidia", cards, given_by({CUDA: "GPU-3"}), None).gpus] == [3]
    nameless = [replace(card, uuid=None) for card in cards]
    assert value_for(select("nvidia", nameless, given_by({CUDA: "2"}), None), nameless) == "2"


def cut(index: int, parts: int) -> Gpu:
    instances = tuple(GpuInstance(number, 0) for number in range(1, parts + 1))
    return Gpu("nvidia", index, "sm_80", "A100", f"0:{index}", uuid=f"GPU-{index}", mode="MIG",
               instances=instances)  # fmt: skip


@pytest.mark.parametrize("mask", ["MIG-bb", "mig-c", "MIG-cc,MIG-aa", "MIG-GPU-1/1/0"])
def test_mig_instances_pass_as_they_are(mask: str) -> None:
    every = [cut(0, 2), cut(1, 1)]
    selection = select("nvidia", every, given_by({CUDA: mask}), None)
    assert selection.gpus == tuple(every)
    assert value_for(selection, every) == mask
    assert f"CUDA_VISIBLE_DEVICES={mask} " in selection.summary


def test_a_mig_instance_where_no_card_is_cut() -> None:
    whole = Gpu("nvidia", 0, "sm_80", "A100", "0:0", uuid="GPU-0")
    with pytest.raises(ConfigurationError, match="no usable GPU is partitioned by MIG"):
        select("nvidia", [whole], given_by({CUDA: "MIG-dd"}), None)


def test_without_a_mask_a_card_that_is_cut_is_named() -> None:
    assert value_for(select("nvidia", [cut(0, 2)], given_by({}), None), [cut(0, 2)]) == "GPU-0"


def test_partitions_of_a_card_share_a_name() -> None:
    parts = [replace(gpu, uuid="GPU-00000000000000aa") for gpu in gpus(4)]
    selection: DeviceSelection = select(
        "amd", parts, given_by({ROCR: "GPU-00000000000000aa"}), None
    )
    assert len(selection.gpus) == 4
    assert value_for(selection, parts) == "0,1,2,3"


def test_a_wrong_variable_does_not_stop_a_command_of_the_processor(tmp_path: Path) -> None:
    host = detect(Tree(tmp_path).cpu().amd_driver(None).amd(MI300A, 1).root, {ROCR: "3"})
    assert name_of(decide(host, image="cpu")) == "cpu"
    assert name_of(decide(host, use="never")) == "cpu"
    for image in ("auto", "rocm64"):
        with pytest.raises(ConfigurationError, match="ROCR_VISIBLE_DEVICES=3, 1 can be used"):
            decide(host, image=image)


def test_cuda_visible_devices_is_of_nvidia_where_it_has_gpus() -> None:
    """ROCm would count it too, so a program on the GPUs of AMD gets its own variable instead."""
    of_amd = gpus(2)
    of_nvidia = [replace(gpu, vendor="nvidia") for gpu in of_amd]
    assert select("amd", of_amd, given_by({CUDA: "1"}), None).gpus == (of_amd[1],)
    assert select("amd", [*of_amd, *of_nvidia], given_by({CUDA: "1"}), None).gpus == tuple(of_amd)
    assert select("nvidia", [*of_amd, *of_nvidia], given_by({CUDA: "1"}), None).gpus == (
        of_nvidia[1],
    )


def test_numbers_of_unlike_gpus_count_as_cuda_counts() -> None:
    """The fastest first, unless CUDA_DEVICE_ORDER says otherwise."""
    slow = Gpu("nvidia", 0, "sm_61", "GTX 1080", "0000:01:00.0", uuid="GPU-a")
    fast = Gpu("nvidia", 1, "sm_89", "RTX 4090", "0000:02:00.0", uuid="GPU-b")
    selection = select("nvidia", [slow, fast], given_by({CUDA: "0"}), None)
    assert selection.gpus == (fast,)
    (remark,) = selection.remarks
    assert "counts the fastest GPU first, taken as RTX 4090, GTX 1080" in remark.evidence
    ordered = {CUDA: "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    selection = select("nvidia", [slow, fast], given_by(ordered), None)
    assert (selection.gpus, selection.remarks) == ((slow,), ())
    assert select("nvidia", [slow, fast], given_by({CUDA: "GPU-a"}), None).remarks == ()
