"""Shell completion of both programs, in the shells that are installed."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launches import program

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """A folder with a file, and both programs on a PATH of their own."""
    for name, module in (("aam", "aam.cli"), ("aam-launch", "launcher.cli")):
        program(tmp_path / name, f'exec "{sys.executable}" -m {module} "$@"')
    (tmp_path / "zz file").touch()
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}


def candidates(line: str, folder: Path, environment: dict[str, str]) -> set[str]:
    """Return the candidates for the last word of a line, as the shells request them."""
    out = folder / "candidates"
    variables = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(out), "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line, "COMP_POINT": str(len(line.encode())),
    }  # fmt: skip
    subprocess.run(
        [line.split()[0]], env={**environment, **variables}, cwd=folder, check=True,
        capture_output=True,
    )  # fmt: skip
    return {word.strip() for word in out.read_text().split("\n") if word}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("aam-launch pre", {"pretrain", "predict", "prepare"}),
        ("aam-launch explain predi", {"predict"}),
        ("aam-launch --image x --force tra", {"train"}),
        ("aam-launch explain doc", set()),
        ("aam-launch train --attn-implementation me", {"mem_efficient"}),
        ("aam-launch train --attn-implementation=me", {"--attn-implementation=mem_efficient"}),
        ("aam-launch train --runtime po", {"podman"}),
        ("aam-launch --image rocm", {"rocm72", "rocm64", "rocm63", "rocm62", "rocm60"}),
        ("aam-launch completion ", {"bash", "zsh", "fish"}),
        ("aam-launch submit train --gp", {"--gpus"}),
        ("aam-launch images v", {"verify"}),
        ("aam tune --rounds 5 pretrain --warmup-f", {"--warmup-fraction"}),
        ("aam-launch submit profile --output-dir p train --loss-type q", {"quantile"}),
        ("aam train --table zz", {"zz\\ file"}),
    ],
)
def test_candidates_follow_from_the_options(
    line: str, expected: set[str], tmp_path: Path, shell: dict[str, str]
) -> None:
    assert candidates(line, tmp_path, shell) == expected


def test_bash_completes(tmp_path: Path, shell: dict[str, str]) -> None:
    code = (
        '. <("$1" completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; '
        'COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; _python_argcomplete "$1"; echo "${COMPREPLY[*]}"'
    )
    for args, expected in (
        (["aam-launch", "pretr"], "pretrain"),
        (["aam-launch", "explain", "train", "--attn-implementation", "me"], "mem_efficient"),
        (["aam", "embe"], "embed"),
    ):
        done = subprocess.run(
            ["bash", "-c", code, "bash", *args],
            capture_output=True, text=True, check=True, env=shell, cwd=tmp_path,
        )  # fmt: skip
        assert done.stdout.strip() == expected, done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path, shell: dict[str, str]) -> None:
    for line, expected in (
        ("aam-launch pretr", "pretrain"),
        ("aam train --attn-implementation me", "mem_efficient"),
        ("aam-launch train --table zz", "zz file"),
    ):
        code = f'aam-launch completion fish | source; complete -C "{line}"'
        done = subprocess.run(
            ["fish", "--no-config", "-c", code],
            capture_output=True, text=True, check=True, env=shell, cwd=tmp_path,
        )  # fmt: skip
        assert expected in [one.split("\t")[0].strip() for one in done.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(tmp_path: Path, shell: dict[str, str]) -> None:
    """In a terminal of its own, since zsh completes nowhere else: type, press Tab, look."""
    for line, expected in (
        ("aam-launch explain pretr", "explain pretrain "),
        ("aam train --attn-implementation me", "--attn-implementation mem_efficient "),
        ("aam-launch train --table zz", "--table zz\\ file"),
    ):
        parent, child = os.openpty()
        zsh = subprocess.Popen(
            ["zsh", "-f", "-i"], stdin=child, stdout=child, stderr=child, cwd=tmp_path,
            env={**shell, "TERM": "dumb", "PS1": "> "}, start_new_session=True,
        )  # fmt: skip
        os.close(child)
        try:
            os.write(parent, b"autoload -Uz compinit && compinit -u; . <(aam completion zsh); "
                             b"print re''ady\n")  # fmt: skip
            seen = read_until(parent, "ready\r\n")
            os.write(parent, f"{line}\t".encode())
            seen = read_until(parent, expected)
            assert expected in seen
        finally:
            zsh.kill()
            zsh.wait()
            os.close(parent)


def read_until(terminal: int, expected: str) -> str:
    """Return what a terminal shows, up to `expected` or until nothing has come for 20 s."""
    seen = ""
    while expected not in seen and select.select([terminal], [], [], 20)[0]:
        seen += os.read(terminal, 4096).decode(errors="replace")
    return seen
