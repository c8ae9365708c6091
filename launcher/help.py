"""Help pages of `aam-launch`."""

from __future__ import annotations

from collections.abc import Sequence

from aam import __version__
from aam.contract.options import COMMANDS
from launcher.plan.launcher_options import LAUNCHER_FLAGS, SWITCHES, WITH_VALUE
from launcher.plan.request import options_of
from launcher.plan.settings import SETTING_SPECS

LAUNCHER_COMMANDS = {
    "explain": "Show every decision about a command, why, and from where; runs nothing.",
    "doctor": "Say what this host has, what would fail, and the remedy.",
    "images": "List, build, lock, verify and remove images: `images build NAME`.",
    "submit": "Check a command and queue it as a Slurm job.",
    "jobs": "List what was submitted: state, time left, last figures.",
    "site": "Show or check what is known of a cluster: `site show NAME`.",
    "trust": "Accept the settings of the current folder (aam-launch.yaml) as they are now.",
    "replay": "Run the run of a run.json again.",
    "completion": "Print completions for bash, zsh or fish.",
}


USAGE = {
    "explain": ("COMMAND [OPTIONS]", ("--json", "--host", "--image", "--runtime", "--site")),
    "doctor": ("", ("--json", "--host", "--capture", "--image-dir")),
    "replay": ("RUN.JSON [OPTIONS THAT REPLACE THOSE OF THEN]", ("--dry-run", "--force")),
    "trust": ("[FOLDER or FILE] [--revoke]", ()),
    "jobs": ("", ("--json",)),
    "site": ("show|check NAME", ("--json",)),
    "completion": ("bash|zsh|fish", ()),
}
"""Arguments and options of the launcher's commands, by command."""


def overview() -> str:
    """Return the help page: the commands by group and the launcher's own options."""
    lines = ["usage: aam-launch [OPTIONS OF THE LAUNCHER] COMMAND [OPTIONS]", ""]
    lines.append(f"Run `aam` in the environment that suits this host. aam-launch {__version__}")
    for group, commands in COMMANDS.items():
        lines += ["", group]
        for name, options_class in commands.items():
            lines.append(f"  {name:<15} {(options_class.__doc__ or '').splitlines()[0]}")
    lines += ["", "Understand"]
    lines += [f"  {name:<15} {help}" for name, help in LAUNCHER_COMMANDS.items()]
    lines += ["", "Options of the launcher, anywhere on the line"]
    lines += [f"  {spec.flag + ' ' + spec.metavar:<20} {spec.help}"
              for spec in SETTING_SPECS.values() if spec.flag]  # fmt: skip
    lines += [f"  {flag:<20} {help}" for flag, help in (WITH_VALUE | SWITCHES).items()]
    return "\n".join([*lines, "", "`aam-launch COMMAND --help` lists a command's options."])


def launcher_help(command: str, rest: Sequence[str] = ()) -> str:
    """Return the page of one of the launcher's own commands; most have no options of their own.

    `rest` is what follows it: `images build` has a page of its own.
    """
    if command == "images":
        from launcher.images.options import help_page

        return help_page(rest)
    if command in USAGE:
        synopsis, flags = USAGE[command]
        page = [
            f"usage: aam-launch {command} {synopsis}".rstrip(),
            "",
            LAUNCHER_COMMANDS[command],
            "",
        ]
        page += [f"  {flag:<22} {LAUNCHER_FLAGS[flag]}" for flag in flags]
        return "\n".join(page).rstrip()
    if command != "submit":
        return overview()
    from launcher.slurm.submit_options import FLAGS
    from launcher.slurm.submit_options import SWITCHES as SUBMIT_SWITCHES

    lines = ["usage: aam-launch submit COMMAND [OPTIONS OF THE JOB] [OPTIONS OF COMMAND]", ""]
    lines += [LAUNCHER_COMMANDS["submit"] + " --dry-run prints its script.", ""]
    lines += [f"  {f'{flag} {metavar}':<22} {help}" for flag, (metavar, help) in FLAGS.items()]
    lines += [f"  {flag:<22} {help}" for flag, help in SUBMIT_SWITCHES.items()]
    return "\n".join(
        [*lines, "", "The launcher's own options (--site, --image) may stand anywhere."]
    )


def command_help(command: str) -> str:
    """Return the options of a command of `aam`, a line each."""
    lines = [f"usage: aam-launch [OPTIONS OF THE LAUNCHER] {command} [OPTIONS]"]
    group = None
    for spec in options_of(command).values():
        if spec.group != group:
            group = spec.group
            lines += ["", group.removesuffix("Options") or group]
        default = "required" if spec.required else f"default: {spec.default}"
        lines.append(f"  {spec.flag:<28} {spec.help} ({default})")
    return "\n".join(lines)
