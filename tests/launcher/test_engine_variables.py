"""Variables that would change what an engine does with a plan."""

from __future__ import annotations

import pytest

from launcher.engines import ENGINES
from launcher.plan.environment import unset

HOSTILE = ("FAKEROOT", "SECURITY", "CWD", "BIND", "NV", "ROCM", "ALLOW_SETUID", "NEW_OPTION")


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_only_a_safe_list_of_variables_reaches_a_sif_engine(name: str) -> None:
    safe = ("CACHEDIR", "TMPDIR", "MESSAGELEVEL")
    present = [f"{prefix}_{word}" for prefix in ("APPTAINER", "SINGULARITY")
               for word in (*HOSTILE, *safe)]  # fmt: skip
    present += ["APPTAINERENV_LD_PRELOAD", "SINGULARITYENV_PATH", "http_proxy", "PATH", "HOME"]
    kept = set(present) - set(unset(present, ENGINES[name].traits))
    allowed = {f"{prefix}_{word}" for prefix in ("APPTAINER", "SINGULARITY") for word in safe}
    assert kept == {*allowed, "PATH", "HOME"}


def test_podmans_defaults_of_a_shell_do_not_reach_it() -> None:
    present = ["PODMAN_USERNS", "CONTAINER_HOST", "CONTAINERS_CONF", "XDG_RUNTIME_DIR"]
    assert unset(present, ENGINES["podman"].traits) == ("PODMAN_USERNS", "CONTAINER_HOST")
