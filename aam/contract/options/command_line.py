"""Command-line parser of both programs: options as arguments, --config, wrapped commands.

The result is a mapping flag -> value of the options on the command line, in order.

A command may wrap another one after its own options: `aam tune --rounds 5 pretrain --table
table.biom`. The wrapped command's options for output, overwriting and resuming have no effect.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aam.contract import run_files
from aam.contract.dataclass import dataclass
from aam.contract.errors import ConfigurationError, UsageError, first_few, nearest
from aam.contract.options import (
    SYNONYMS,
    OptionSpec,
    Role,
    alternatives,
    build,
    flag_of,
    flat,
    numbered,
)
from aam.contract.options.commands import WRAPPERS, find, names, options_of, wrapped_options
from aam.contract.options.conditions import require_consistent
from aam.contract.options.groups import uses_network

if TYPE_CHECKING:
    from aam.contract.records import Sourced

FAMILIAR = {
    word: flags.split()
    for spellings, flags in (
        ("-i --input --biom --features --feature-table --i-table", "--table"),
        ("-m --mapping --metadata-file --m-metadata-file", "--metadata"),
        ("-c --column --target --label --labels --m-metadata-column", "--metadata-column"),
        ("--fasta --rep-seqs --i-data --i-sequences", "--sequences"),
        ("--phylogeny --i-phylogeny --i-tree", "--tree"),
        ("-o --out --outdir --output --output-dir --o-visualization", "--output-dir --output"),
        ("-t -j --threads --cpus --cores --jobs --n-jobs --p-n-jobs", "--cpu-threads"),
        ("--random-state --random-seed --p-random-state", "--seed"),
        ("--group --groups --subject --subject-column --individual", "--group-column"),
        ("--study --studies --cohort --batch --batch-column --dataset", "--study-column"),
        ("-k --cv --kfold --n-splits --p-cv", "--folds"),
        ("--classify --classification", "--classifier"),
        ("-f --force", "--overwrite"),
        ("-r --resume --continue", "--resume-from"),
        ("--learning-rate", "--lr"),
        ("--gpu --gpus --cuda --use-gpu", "--device"),
        ("--container --sif", "--image"),
    )
    for word in spellings.split()
}
"""Options of QIIME 2, scikit-learn and shells, with our equivalents by preference."""

FAMILIAR_MODES = {
    **dict.fromkeys(("-q", "--quiet", "--silent"), "add 2>/dev/null to leave out the messages"),
    **dict.fromkeys(("-v", "--verbose", "--debug"), "all messages are printed already"),
}
"""Modes of other programs that this program lacks, with the remedy."""

Self = TypeVar("Self", bound="ParsedCommand")

ADDRESS = re.compile(r"(file|https?|ftp|sftp|s3|gs):", re.IGNORECASE)
NUMBER = re.compile(r"-\.?\d")
"""Negative number: a value; every other argument with a dash is an option."""

PROGRAM = "--"  # separator before the arguments of another program
PROGRAMS = ("tune",)  # commands that take another program

HELP_ALL = "--help-all"
HELP = ("-h", "--help", HELP_ALL)

CONFIG = OptionSpec(
    "--config",
    "config",
    Path,
    "Read options from a YAML file or the run.json of an earlier run. Options on the command line "
    "replace them.",
    basic=True,
)
"""Option of every command of `aam`, for the options in its file."""

OF_A_STUDY = ("--table", "--sequences", "--metadata")
"""Files of a study: a second one is an error. The last value of other options counts."""

_NOT_FROM_A_RECORD = ("resume_from", "overwrite", "device", "num_workers", "cpu_threads")
"""Options not taken from a run record, as outputs are not: they would replace the run, or have
values of its host in place of `auto`."""


class Parser(argparse.ArgumentParser):
    """Parser of arguments without abbreviations; `--table_x` is `--table-x`."""

    def __init__(self, **settings: Any) -> None:
        # A fixed width: argparse would look up the terminal's width for each option.
        settings |= {"formatter_class": partial(argparse.HelpFormatter, width=80)}
        super().__init__(add_help=False, allow_abbrev=False, exit_on_error=False, **settings)
        self._negative_number_matcher = NUMBER

    def add(self, spec: OptionSpec) -> argparse.Action:
        """Add an option; the result lacks it if the command line does."""
        settings: dict[str, Any] = {"dest": spec.flag, "default": argparse.SUPPRESS}
        if spec.type is bool:
            return self.add_argument(spec.flag, action=argparse.BooleanOptionalAction, **settings)
        settings |= {"type": lambda text: convert(spec, text), "metavar": metavar(spec)}
        if typing.get_origin(spec.type) is tuple:
            settings["type"] = lambda text: convert_all(spec, text)
            # The command after a repeated option of the launcher is not a value of it.
            settings["nargs"] = None if spec.repeated and spec.role == "value" else "+"
            return self.add_argument(spec.flag, action=_Several, **settings)
        if spec.implied is not None:
            settings |= {"nargs": "?", "const": spec.implied}
        return self.add_argument(spec.flag, **settings)


class _Several(argparse.Action):
    """Values of an option from all of its occurrences."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: Any = None) -> None:
        items = values if isinstance(values, list) else [values]
        earlier = getattr(namespace, self.dest, ())
        setattr(namespace, self.dest, (*earlier, *itertools.chain.from_iterable(items)))


# --- one argument


def convert_all(spec: OptionSpec, text: str) -> tuple[Any, ...]:
    """Return the values of an argument; a,b are several values of numbers and choices."""
    if typing.get_origin(spec.type) is tuple and not {str, Path} & {*alternatives(spec.type)}:
        texts = [item.strip() for item in text.split(",")]
        return tuple(convert(spec, item) for item in texts if item or len(texts) == 1)
    return (convert(spec, text),)


def convert(spec: OptionSpec, text: str) -> Any:
    """Convert a text to the value of an option."""
    types = alternatives(spec.type)
    choices = {str(value): value for value in spec.choices}
    choices |= {word: value for word, value in SYNONYMS.items() if value in choices}
    if type(None) in types:
        choices["None"] = None
    if text in choices:
        return choices[text]
    if Path in types:
        if ADDRESS.match(text):
            evidence, remedy = f"{spec.flag} {text}", "copy the file here and name the copy"
            raise UsageError("An address instead of a path", evidence, remedy)
        # The shell does not expand `~` after `=` or in quotes.
        expanded = os.path.expanduser(text)
        if expanded.startswith("~"):
            raise UsageError("No such user", f"{spec.flag} {text}", f"write ./{text} for a file")
        return Path(expanded)
    if str in types:
        return text
    for number in (int, float):
        if number in types:
            try:
                value = number(text)
            except ValueError:
                continue
            if spec.takes is not None and not spec.takes.holds(value):
                remedy = f"give {spec.takes.description} for {spec.flag}"
                raise UsageError("Value out of range", f"{spec.flag} {value}", remedy)
            return value
    expected = [*choices, *("a whole number" for kind in types if kind is int)]
    expected += ["a number" for kind in types if kind is float]
    remedy = nearest(text, choices, f"give {' or '.join(expected)}")
    raise UsageError(f"Invalid value for {spec.flag}", f"'{text}'", remedy)


def metavar(spec: OptionSpec) -> str:
    """Return the name of an option's value in help pages.

    >>> metavar(OptionSpec("--num-workers", "num_workers", int | typing.Literal["auto"], ""))
    'auto|N'
    """
    types = alternatives(spec.type)
    placeholders = {int: "N", float: "X", str: "TEXT"}
    placeholders[Path] = "FOLDER" if spec.field.endswith("dir") else "PATH"
    metavars = [spec.metavar or placeholders[kind] for kind in types if kind in placeholders]
    return "|".join([*map(str, spec.choices), *metavars])


def _names_an_option(argument: str) -> bool:
    return argument.startswith("-") and argument != "-" and not NUMBER.match(argument)


def _flag(argument: str) -> str:
    """Return the flag of an argument with dashes: `--table-x` for `--table_x=1`."""
    flag = argument.partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


def before_program(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments before `--` and another program."""
    return argv[: argv.index(PROGRAM)] if PROGRAM in argv else argv


# --- all arguments of a command


def parse_known(
    options: Iterable[OptionSpec], argv: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return flag -> value of the `options` in `argv`, and the other arguments in order."""
    parser = Parser()
    for spec in options:
        parser.add(spec)
    argv, program = (command_argv := before_program(argv)), argv[len(command_argv) :]
    try:
        namespace, remaining = parser.parse_known_args(
            [(flag := _flag(word)) + word[len(flag) :] for word in argv]
        )
    except argparse.ArgumentError as error:
        flag = (error.argument_name or "").partition("/")[0]
        if "/" in (error.argument_name or ""):  # --stratify/--no-stratify
            raise UsageError("A switch takes no value", flag, f"write {flag} alone") from None
        raise UsageError("An option without its value", flag, "write the value after it") from None
    return vars(namespace), [*remaining, *program]


def given_twice(options: Iterable[OptionSpec], argv: Sequence[str]) -> list[str]:
    """Return a warning for each single-valued option that a command line repeats."""
    flags = [_flag(word) for word in before_program(argv)]
    sentences = []
    for spec in options:
        times = flags.count(spec.flag) + flags.count(f"--no-{spec.flag[2:]}")
        if times < 2 or typing.get_origin(spec.type) is tuple:
            continue
        if spec.flag in OF_A_STUDY:
            remedy = "give one; join several studies first: `aam prepare --table A --table B "
            remedy += "--metadata A --metadata B --studies a,b --output both.aam`"
            raise UsageError(f"Several files as {spec.flag}", f"{times} times", remedy)
        sentences.append(f"{spec.flag} is given {times} times: only the last value counts.")
    return sentences


def parse_options(
    options: Iterable[OptionSpec],
    argv: Sequence[str],
    command: str,
    *,
    launcher_flags: Collection[str] = (),
    incomplete: bool = False,
) -> dict[str, Any]:
    """Parse the options of a command: flag -> value; with `launcher_flags` for `aam-launch`."""
    declared = {spec.flag: spec for spec in options}
    by_flag, positional = parse_known(declared.values(), argv)
    unknown = next((argument for argument in positional if _names_an_option(argument)), None)
    if unknown is not None:
        flag = _flag(unknown)
        otherwise = f"see `{_program(launcher_flags)} {command} --help`"
        remedy = _remedy_for(flag, (*declared, *launcher_flags), otherwise)
        raise UsageError(f"`{command}` has no such option", f"'{unknown}'", remedy)
    first = next((spec for spec in declared.values() if spec.first), None)
    if positional and first is not None and first.flag not in by_flag:
        is_tuple = typing.get_origin(first.type) is tuple
        leading, positional = (positional, []) if is_tuple else (positional[:1], positional[1:])
        values = tuple(value for text in leading for value in convert_all(first, text))
        by_flag = {first.flag: values if is_tuple else values[0], **by_flag}
    # `aam train TABLE METADATA COLUMN`: values without flags, in order.
    absent, replaced = list[OptionSpec](), set[str]()
    for spec in (declared[flag] for flag in leading_flags(command) if flag not in by_flag):
        if by_flag.keys().isdisjoint(spec.excludes) and replaced.isdisjoint(spec.needs):
            absent.append(spec)
        else:  # --predictions replaces --model and --table
            replaced.add(spec.flag)
    for spec, text in zip(absent, positional, strict=False):
        by_flag[spec.flag] = convert(spec, text)
    positional = positional[len(absent) :]
    if positional:
        remedy = "write each value after its option, and quote values with spaces"
        raise UsageError("A value without an option", f"'{positional[0]}'", remedy)
    if not incomplete:
        _require_all(declared.values(), by_flag, command)
    return by_flag


def _program(launcher_flags: Collection[str]) -> str:
    return "aam-launch" if launcher_flags else "aam"


def _remedy_for(flag: str, flags: Collection[str], otherwise: str) -> str:
    if flag in FAMILIAR_MODES:
        return FAMILIAR_MODES[flag]
    if flag in FAMILIAR:  # its spelling may be close to unrelated options
        same = [option for option in FAMILIAR[flag] if option in flags]
        return f"write {same[0]}" if same else otherwise
    return nearest(flag, flags, otherwise)


def leading_flags(command: str) -> tuple[str, ...]:
    """Return the flags that may be omitted if their values come first, in order."""
    return tuple(getattr(find(command), "leading", ()))


def output_folder(command: str, column: str) -> Path:
    """Return the run folder named after a column: a new folder or the folder of a run.

    >>> str(output_folder("train", "pH (soil)")), str(output_folder("search", "pH"))
    ('pH (soil)', 'pH-search')
    """
    folder, files = Path(column if command == "train" else f"{column}-{command}"), list[str]()
    is_name = re.fullmatch(r"(?!\.*$)[^~\-\s/]([^/]*[^/\s])?", column) and column.isprintable()
    if is_name and os.path.isdir(folder) and not run_files.recognized(folder):
        files = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    if not is_name or (files and run_files.RECORD not in files):
        evidence = f"'{folder}' has {first_few(files)}" if files else f"'{column}'"
        cause = "The run folder cannot be named after the column"
        raise UsageError(cause, evidence, "add --output-dir")
    return folder


def _require_all(
    options: Iterable[OptionSpec], flags: Collection[str], command: str, form: str = ""
) -> None:
    """Check that all required options are present; `form` shows their position."""
    lacking = [metavar(spec) if spec.first else spec.flag
               for spec in options if spec.required and spec.flag not in flags]  # fmt: skip
    if lacking and form:
        remedy = f"give them before the command: `{form}`"
        raise UsageError(f"`{command}` lacks its own required options", ", ".join(lacking), remedy)
    if lacking:
        remedy = f"give a value for {'each' if len(lacking) > 1 else 'it'}"
        raise UsageError(f"`{command}` lacks required options", ", ".join(lacking), remedy)


def parse_command(
    command: str,
    argv: Sequence[str],
    *,
    launcher_flags: Collection[str] = (),
    incomplete: bool = False,
) -> dict[str, Any]:
    """Parse the options of a command of `aam`: flag -> value, including --config."""
    options = options_of(command)
    by_flag = parse_options(
        (*options, CONFIG), argv, command, launcher_flags=launcher_flags, incomplete=True
    )
    if (file := by_flag.pop(CONFIG.flag, None)) is not None:
        by_flag = {**read_config(file, options, command), **by_flag}
    output, column = "--output-dir", by_flag.get("--metadata-column")
    named_after = bool(leading_flags(command)) and any(spec.flag == output for spec in options)
    if named_after and output not in by_flag and column is not None:
        by_flag[output] = output_folder(command, str(column))
    if not incomplete:
        needed = [spec for spec in options if not named_after or spec.flag != output]
        _require_all(needed, by_flag, command)
        require_consistent(_built(command, by_flag))
    return by_flag


def _built(command: str, by_flag: Mapping[str, Any]) -> Any:
    """Return the options of a command; absent ones are None, absent outputs the null device."""
    values: dict[str, Any] = {
        spec.flag: Path(os.devnull) if spec.role == "output" else None
        for spec in options_of(command)
        if spec.required
    }
    return build(typing.cast(type, find(command)), {**values, **by_flag})


def arguments(options: Iterable[OptionSpec], by_flag: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments for flag -> value; flags outside `options` are left out."""
    declared = {spec.flag: spec for spec in options}
    argv: list[str] = []
    for flag, value in by_flag.items():
        if flag not in declared:
            continue
        if isinstance(value, bool):
            argv.append(flag if value else f"--no-{flag[2:]}")
        elif declared[flag].repeated:
            argv += [f"{flag}={item}" for item in value]
        elif isinstance(value, tuple):
            argv += [flag, *map(str, value)]
        elif str(value).startswith("-"):
            argv.append(f"{flag}={value}")
        else:
            argv += [flag, str(value)]
    return tuple(argv)


# --- values of a file


def read_config(path: Path, options: Iterable[OptionSpec], command: str) -> dict[str, Any]:
    """Read the options of a command from the file of --config: flag -> value."""
    # msgspec and PyYAML take 25 ms, and only --config needs them.
    from aam.contract.records import RecordEntries, Sourced, read_json, read_yaml_entries

    declared = {spec.field: spec for spec in options}
    path = path / "run.json" if path.is_dir() else path
    by_flag: dict[str, Any] = {}
    if path.suffix != ".json":
        keys = [key for name in declared for key in (name, name.replace("_", "-"))]
        remedy = f"see `aam {command} --help`"
        for key, entry in read_yaml_entries(path, "file for --config", keys, remedy).items():
            by_flag |= typed(declared[key.replace("-", "_")], entry)
        return by_flag
    record = read_json(path, RecordEntries, "run record", "give the run.json of a run")
    if record.command != command:
        evidence = f"'{path}' is from `aam {record.command}`"
        remedy = f"give one of `aam {command}`"
        raise UsageError("A run record of another command", evidence, remedy)
    for name, value in flat(record.options).items():
        if name not in declared:
            otherwise = "the run is from another version: give its options by hand"
            remedy = nearest(name, declared, otherwise)
            raise UsageError(f"`{command}` has no such option", f"'{name}' in '{path}'", remedy)
        spec = declared[name]
        default = list(spec.default) if isinstance(spec.default, tuple) else spec.default
        if spec.role == "output" or name in _NOT_FROM_A_RECORD or value in (None, default):
            continue
        # The recorded path of an input is absolute, unlike the value of the option.
        values = value if isinstance(value, list) else [value]
        inputs = {flag: file.path for flag, file in record.inputs.items()}
        stored = [inputs.get(flag) or v for flag, v in numbered(flag_of(name), values).items()]
        by_flag |= typed(spec, Sourced(stored if isinstance(value, list) else stored[0], str(path)))
    return by_flag


def typed(spec: OptionSpec, entry: Sourced[Any]) -> dict[str, Any]:
    """Convert a value of a file to flag -> value."""
    value = entry.value
    if value is None and type(None) in alternatives(spec.type):
        return {spec.flag: None}
    if isinstance(value, bool) and spec.type is bool:
        return {spec.flag: value}
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not isinstance(item, (str, int, float)) for item in items):
        evidence = f"{spec.flag} '{value}' in {entry.source}"
        remedy = "write it in quotes if it is text"
        raise ConfigurationError("Not a value of an option", evidence, remedy)
    argv = [spec.flag, *map(str, items)]
    if spec.repeated:
        argv = [f"{spec.flag}={item}" for item in items]
    try:
        by_flag, remaining = parse_known([spec], argv)
    except UsageError as error:
        evidence = f"{error.evidence} in {entry.source}"
        raise UsageError(error.cause, evidence, error.remedy) from error
    if remaining:
        evidence = f"{spec.flag} {value} in {entry.source}"
        raise UsageError("Several values for an option that takes one", evidence, "give one")
    return by_flag


# --- a command line


@dataclass(frozen=True)
class ParsedCommand:
    """Command of `aam`, one or two words, and the options on its command line."""

    command: str
    given: Mapping[str, Any] = field(default_factory=dict)  # flag -> value, of `wrapped` too
    wrapped: str = field(default="", kw_only=True)  # the wrapped command, "" without one
    program: tuple[str, ...] = field(default=(), kw_only=True)  # arguments of a wrapped program

    @property
    def options(self) -> tuple[OptionSpec, ...]:
        """Declarations of its options and of the wrapped command's."""
        return options_of(self.command) + wrapped_options(self.command, self.wrapped)

    def option(self, flag: str) -> OptionSpec | None:
        """Return the declaration of an option, or None."""
        return next((spec for spec in self.options if spec.flag == flag), None)

    def value(self, flag: str) -> Any:
        """Return the value or default of an option; None without such an option."""
        spec = self.option(flag)
        return self.given.get(flag, spec.default if spec else None)

    def build(self) -> Any:
        """Return the options of the command itself."""
        return _built(self.command, self.given)

    def build_wrapped(self) -> Any:
        """Return the options of the wrapped command, or the arguments of a wrapped program."""
        if not self.wrapped:
            return self.program
        flags = {spec.flag for spec in wrapped_options(self.command, self.wrapped)}
        return _built(self.wrapped, {k: v for k, v in self.given.items() if k in flags})

    @property
    def uses_network(self) -> bool:
        """Whether it computes with the network."""
        return bool(self.wrapped) or uses_network(self.build())

    @property
    def computes_on_gpu(self) -> bool:
        """Whether it computes on an available GPU."""
        return self.value("--device") not in (None, "cpu") and self.uses_network

    @property
    def starts_ranks(self) -> bool:
        """Whether its process starts one process per GPU of the node."""
        return bool(getattr(find(self.command), "starts_ranks", False))

    def paths(self, role: Role) -> tuple[tuple[OptionSpec, Path], ...]:
        """Return option and path of all inputs or outputs."""
        of_role = (spec for spec in self.options if spec.role == role)
        values = ((spec, self.given.get(spec.flag)) for spec in of_role)
        items = ((s, item) for s, v in values for item in (v if isinstance(v, tuple) else (v,)))
        return tuple((spec, path) for spec, path in items if isinstance(path, Path))

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of these values, after the command."""
        argv = arguments(options_of(self.command), self.given)
        if self.wrapped:
            of_wrapped = wrapped_options(self.command, self.wrapped)
            return (*argv, self.wrapped, *arguments(of_wrapped, self.given))
        return (*argv, PROGRAM, *self.program) if self.program else argv

    @property
    def argv(self) -> tuple[str, ...]:
        """Command line of these values."""
        return (*self.command.split(), *self.arguments)

    def with_values(self: Self, values: Mapping[str, Any]) -> Self:
        """Return the command with added or replaced values of options."""
        return replace(self, given={**self.given, **values})


def split_command(
    argv: Sequence[str], more: Iterable[str] = (), program: str = "aam"
) -> tuple[str, list[str]]:
    """Split a command line into the command, one or two words, and the remaining arguments."""
    commands = (*names(), *more)
    if not argv:
        raise UsageError("No command", f"`{program}`", f"see `{program} --help`")
    if argv[0].startswith("-"):
        remedy = f"write it after the command: `{program} COMMAND {' '.join(argv[:2])}`"
        raise UsageError("An option before the command", f"'{argv[0]}'", remedy)
    for length in (2, 1):
        name = " ".join(argv[:length])
        if name in commands:
            return name, list(argv[length:])
    longer = [command for command in commands if command.startswith(f"{name} ")]
    if longer:
        near = longer if len(argv) > 1 else ()
        remedy = nearest(" ".join(argv[:2]), near, f"give `{'` or `'.join(longer)}`")
        raise UsageError("Missing subcommand", f"`{name}`", remedy)
    remedy = nearest(name, commands, f"see `{program} --help`")
    raise UsageError("No such command", f"'{name}'", remedy)


def _end_of_options(name: str, argv: Sequence[str]) -> int:
    """Return the position of the wrapped command, or of the `--` before a program."""
    declared = {spec.flag: spec for spec in (*options_of(name), CONFIG)}
    takes_word = any(spec.first for spec in declared.values())
    end, takes_several, wraps = 0, False, ", ".join(WRAPPERS[name])
    while end < len(argv) and argv[end] not in WRAPPERS[name]:
        word = argv[end]
        if word == PROGRAM:
            if name in PROGRAMS:
                break
            raise UsageError(f"`{name}` runs no other program", "--", f"`{name}` takes {wraps}")
        if _names_an_option(word):
            # The value of an option may be the name of a command.
            spec = declared.get(_flag(word))
            takes_several = spec is None or typing.get_origin(spec.type) is tuple
            end += not (spec is None or takes_several or spec.type is bool or "=" in word)
        elif not (takes_several or takes_word):
            remedy = nearest(word, WRAPPERS[name], f"`{name}` takes {wraps}")
            if name in PROGRAMS:
                remedy += f", or `{PROGRAM} PROGRAM ...`"
            raise UsageError(f"Not a command that `{name}` takes", f"'{word}'", remedy)
        end += 1
    return end


def parse(
    argv: Sequence[str],
    *,
    launcher_flags: Collection[str] = (),
    incomplete: bool = False,
) -> ParsedCommand:
    """Parse a command line of `aam`; with `launcher_flags` for `aam-launch`."""
    program = _program(launcher_flags)
    name, remaining = split_command(argv, program=program)
    parse_flags = partial(parse_command, launcher_flags=launcher_flags)
    if name not in WRAPPERS:
        return ParsedCommand(name, parse_flags(name, remaining, incomplete=incomplete))
    options, end = options_of(name), _end_of_options(name, remaining)
    wrapped, wrapped_argv = "".join(remaining[end : end + 1]), remaining[end + 1 :]
    wrapped, program_argv = ("", tuple(wrapped_argv)) if wrapped == PROGRAM else (wrapped, ())
    by_flag = parse_flags(name, remaining[:end], incomplete=True)
    form = " ".join([program, name, "[OPTIONS]", wrapped or "COMMAND", "..."])
    if not incomplete:
        _require_all(options, by_flag, name, form)
        require_consistent(_built(name, by_flag))
        if not (wrapped or program_argv or any(spec.first for spec in options)):
            remedy = f"give {' or '.join(WRAPPERS[name])}: `{form}`"
            raise UsageError(f"`{name}` lacks the command that it takes", "none was given", remedy)
    if not wrapped:
        return ParsedCommand(name, by_flag, program=program_argv)
    # The command's own options may not follow the wrapped command.
    flags = {spec.flag for spec in options} - {spec.flag for spec in options_of(wrapped)}
    used = [_flag(word) for word in wrapped_argv if _names_an_option(word)]
    if misplaced := [flag for flag in used if flag in flags]:
        cause = f"Options of `{name}` after the command that it takes"
        raise UsageError(cause, ", ".join(misplaced), f"write `{form}`")
    values = parse_flags(wrapped, wrapped_argv, incomplete=True)
    effective = wrapped_options(name, wrapped)
    if not incomplete:
        _require_all(effective, values, wrapped)
        require_consistent(_built(wrapped, values))
    by_flag |= {spec.flag: values[spec.flag] for spec in effective if spec.flag in values}
    return ParsedCommand(name, by_flag, wrapped=wrapped)
