"""Which backend runs, given what is known of each."""

from __future__ import annotations

import pytest

from aam.errors import Unavailable
from aam.model.attention import TORCH, Backend
from aam.options.groups import AttnImplementation
from aam.stack.choice import Choice, Known, Standing, Use, choose

ALL_RIGHT: dict[str, Standing] = {b.name: "right" for b in TORCH}


def chosen(asked: AttnImplementation, **standings: Standing) -> Choice:
    """Choose where every backend is right but for `standings`; `flash_masked` is of one use."""

    def known(backend: Backend, use: Use) -> Standing:
        return standings.get(f"{backend.name}_{use}") or standings.get(backend.name, "right")

    return choose(asked, TORCH, known, "cuda")


def names(choice: Choice) -> tuple[str, str]:
    return choice.backends.plain.name, choice.backends.masked.name


@pytest.mark.parametrize("asked", ["auto", "sdpa", "flash", "mem_efficient", "math"])
def test_what_is_right_runs_as_asked(asked: AttnImplementation) -> None:
    found = chosen(asked)
    assert names(found) == (("auto",) * 2 if asked == "sdpa" else (asked,) * 2)
    assert found.said == ()


def test_a_backend_without_masks_shares_the_work() -> None:
    found = chosen("flash", flash_masked="absent")
    assert names(found) == ("flash", "mem_efficient")
    assert found.said == (
        "--attn-implementation flash takes no mask on cuda; mem_efficient runs where there is one.",
    )


def test_a_backend_that_cannot_run_is_replaced() -> None:
    found = chosen("mem_efficient", mem_efficient="absent", flash_masked="absent")
    assert names(found) == ("flash", "math")
    assert found.said == (
        "--attn-implementation mem_efficient cannot run on cuda; "
        "flash, and math with masks, run instead.",
    )


def test_what_is_wrong_is_replaced_by_the_next_right_one() -> None:
    found = chosen("auto", auto="wrong", mem_efficient="wrong", flash_masked="absent")
    assert names(found) == ("flash", "math")
    assert "computes wrong on cuda" in found.said[0]


def test_a_harmless_fault_is_avoided_where_that_is_possible() -> None:
    assert names(chosen("auto", auto="harmless")) == ("flash", "flash")
    others: dict[str, Standing] = {b.name: "wrong" for b in TORCH}
    assert names(chosen("math", **{**others, "math": "harmless"})) == ("math", "math")


def test_where_nothing_is_right_nothing_runs() -> None:
    with pytest.raises(Unavailable, match="auto wrong, flash wrong") as caught:
        chosen("auto", **dict.fromkeys(ALL_RIGHT, "wrong"))
    assert caught.value.status == 69


def test_the_search_stops_at_the_first_right_one() -> None:
    """Trying a backend costs time on a GPU."""
    tried = []

    def known(backend: Backend, use: Use) -> Standing:
        tried.append((backend.name, use))
        return "right"

    counted: Known = known
    choose("math", TORCH, counted, "cuda")
    assert tried == [("math", "plain"), ("math", "masked")]
