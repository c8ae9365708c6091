"""Options of the launcher itself, accepted anywhere among those of `aam`."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options import OptionSpec, specs
from aam.contract.options.field import ONE_OR_MORE, option
from launcher.plan.settings import FILES_ONLY, SETTING_SPECS


@dataclass(frozen=True)
class LaunchOptions:
    """Options of the launcher."""

    dry_run: bool = option(
        "Print what would run, and stop: a command line, or the script of a job.",
        default=False,
        basic=True,
    )
    gpus: int | None = option(
        "Number of GPUs; pretrain and train start a process for each, and they share every batch.",
        default=None,
        takes=ONE_OR_MORE,
        basic=True,
    )
    force: bool = option(
        "Run in an image that does not fit this host; the run record notes it.", default=False
    )
    json: bool = option("Print JSON.", default=False)
    host: Path | None = option(
        "Decide for another host, captured in a tar or a folder.", default=None, role="input"
    )


LAUNCHER_OPTIONS: dict[str, OptionSpec] = {
    spec.flag: spec
    for spec in (
        *(spec for key, spec in SETTING_SPECS.items() if key not in FILES_ONLY),
        *specs(LaunchOptions),
    )
}
"""The launcher's own options by flag; no option of `aam` has one of these names but --json."""
