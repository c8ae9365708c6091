"""Command lines of `aam`: declared options as arguments, values of --config, wrapped commands.

Both programs parse with these functions, so that an option, a value and a mistake have one meaning.
The values of the options that are given are a mapping flag -> value, in the order of the arguments.

A command may wrap another one, which stands after its own options: `aam tune --rounds 5 pretrain
--table table.biom`. The wrapped command is taken as it is; where it would write, and whether it
would replace or continue a run, has no effect.
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
    for words, flags in (
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
    for word in words.split()
}
"""Options of QIIME 2, scikit-learn and shells, and those of this program that do the same; of
several the first that a command has."""

FAMILIAR_MODES = {
    **dict.fromkeys(("-q", "--quiet", "--silent"), "add 2>/dev/null to leave out the messages"),
    **dict.fromkeys(("-v", "--verbose", "--debug"), "all messages are printed already"),
}
"""Modes of other programs that this one does without, and the remedy."""

Self = TypeVar("Self", bound="ParsedCommand")

ADDRESS = re.compile(r"(file|https?|ftp|sftp|s3|gs):", re.IGNORECASE)
NUMBER = re.compile(r"-\.?\d")
"""A negative number, which is a value; every other argument with a dash is an option."""

PROGRAM = "--"  # stands before the arguments of a program that is no command of `aam`
PROGRAMS = ("tune",)  # commands that take such a program

HELP_ALL = "--help-all"
HELP = ("-h", "--help", HELP_ALL)

CONFIG = OptionSpec(
    "--config",
    "config",
    Path,
    "Values of options: a YAML file, or the run.json of an earlier run. The command line replaces "
    "them.",
    basic=True,
)
"""Option of every command of `aam`; it stands for the options in its file."""

OF_A_STUDY = ("--table", "--sequences", "--metadata")
"""Files of a study, of which a second one is of another study; of other options, such as
--resume-from, the last value counts."""

_NOT_FROM_A_RECORD = ("resume_from", "overwrite", "device", "num_workers", "cpu_threads")
"""Options that are not taken from a run record, like outputs: they would replace that run, or are
what its host had in place of `auto`."""


class Parser(argparse.ArgumentParser):
    """Parser of arguments without abbreviations; `--table_x` is `--table-x`."""

    def __init__(self, **settings: Any) -> None:
        # argparse makes a formatter for each option, and looks up the terminal's width each time.
        settings |= {"formatter_class": partial(argparse.HelpFormatter, width=80)}
        super().__init__(add_help=False, allow_abbrev=False, exit_on_error=False, **settings)
        self._negative_number_matcher = NUMBER

    def add(self, spec: OptionSpec) -> argparse.Action:
        """Add an option; it is absent from the result where the command line does not give it."""
        settings: dict[str, Any] = {"dest": spec.flag, "default": argparse.SUPPRESS}
        if spec.type is bool:
            return self.add_argument(spec.flag, action=argparse.BooleanOptionalAction, **settings)
        settings |= {"type": lambda text: convert(spec, text), "metavar": metavar(spec)}
        if typing.get_origin(spec.type) is tuple:
            settings["type"] = lambda text: convert_all(spec, text)
            # A repeated option of the launcher stands before a command, which is no value of it.
            settings["nargs"] = None if spec.repeated and spec.role == "value" else "+"
            return self.add_argument(spec.flag, action=_Several, **settings)
        if spec.alone is not None:
            settings |= {"nargs": "?", "const": spec.alone}
        return self.add_argument(spec.flag, **settings)


class _Several(argparse.Action):
    """Values of an option, of all of its occurrences."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: Any = None) -> None:
        given = values if isinstance(values, list) else [values]
        known = getattr(namespace, self.dest, ())
        setattr(namespace, self.dest, (*known, *itertools.chain.from_iterable(given)))


# --- one argument


def convert_all(spec: OptionSpec, text: str) -> tuple[Any, ...]:
    """Return the values of an argument of an option: several of a,b, where no value has commas."""
    if typing.get_origin(spec.type) is tuple and not {str, Path} & {*alternatives(spec.type)}:
        parts = [part.strip() for part in text.split(",")]
        return tuple(convert(spec, part) for part in parts if part or len(parts) == 1)
    return (convert(spec, text),)


def convert(spec: OptionSpec, text: str) -> Any:
    """Return the value of an option that a text gives."""
    types = alternatives(spec.type)
    choices = {str(value): value for value in spec.choices}
    choices |= {word: value for word, value in SYNONYMS.items() if value in choices}
    if type(None) in types:
        choices["None"] = None
    if text in choices:
        return choices[text]
    if Path in types:
        if ADDRESS.match(text):
            evidence, remedy = f"{spec.flag} {text}", "copy the file here and name it"
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
    words = {int: "N", float: "X", str: "TEXT"}
    words[Path] = "FOLDER" if spec.field.endswith("dir") else "PATH"
    named = [spec.metavar or words[kind] for kind in types if kind in words]
    return "|".join([*map(str, spec.choices), *named])


def _names_an_option(argument: str) -> bool:
    return argument.startswith("-") and argument != "-" and not NUMBER.match(argument)


def _flag(argument: str) -> str:
    """Return the flag of an argument, written with dashes; `--table_x` is `--table-x`."""
    flag = argument.partition("=")[0]
    return flag.replace("_", "-") if flag.startswith("--") else flag


def before_program(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments before `--`, which stands before the arguments of another program."""
    return argv[: argv.index(PROGRAM)] if PROGRAM in argv else argv


# --- all arguments of a command


def parse_known(
    options: Iterable[OptionSpec], argv: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return flag -> value of the `options` that are given, and the other arguments in order."""
    parser = Parser()
    for spec in options:
        parser.add(spec)
    argv, program = (before := before_program(argv)), argv[len(before) :]
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
    """Return a sentence for each option of one value that a command line gives more than once."""
    flags = [_flag(word) for word in before_program(argv)]
    sentences = []
    for spec in options:
        times = flags.count(spec.flag) + flags.count(f"--no-{spec.flag[2:]}")
        if times < 2 or typing.get_origin(spec.type) is tuple:
            continue
        if spec.flag in OF_A_STUDY:
            remedy = "give one; several studies are joined first: `aam prepare --table A --table B "
            remedy += "--metadata A --metadata B --studies a,b --output both.aam`"
            raise UsageError(f"Several files as {spec.flag}", f"{times} times", remedy)
        sentences.append(
            f"{spec.flag} is given {times} times: the last value counts, which replaces the others."
        )
    return sentences


def parse_options(
    options: Iterable[OptionSpec],
    argv: Sequence[str],
    command: str,
    *,
    program: str = "aam",
    others: Collection[str] = (),
    incomplete: bool = False,
) -> dict[str, Any]:
    """Return flag -> value of the options that a command line gives to a command."""
    known = {spec.flag: spec for spec in options}
    given, rest = parse_known(known.values(), argv)
    unknown = next((argument for argument in rest if _names_an_option(argument)), None)
    if unknown is not None:
        flag = _flag(unknown)
        remedy = _remedy_of_unknown(flag, (*known, *others), f"see `{program} {command} --help`")
        raise UsageError(f"`{command}` has no such option", f"'{unknown}'", remedy)
    first = next((spec for spec in known.values() if spec.first), None)
    if rest and first is not None and first.flag not in given:
        several = typing.get_origin(first.type) is tuple
        leading, rest = (rest, []) if several else (rest[:1], rest[1:])
        values = tuple(value for text in leading for value in convert_all(first, text))
        given = {first.flag: values if several else values[0], **given}
    # `aam train TABLE METADATA COLUMN`: in their order, those that no flag gives.
    absent, replaced = list[OptionSpec](), set[str]()
    for spec in (known[flag] for flag in leading_flags(command) if flag not in given):
        if given.keys().isdisjoint(spec.excludes) and replaced.isdisjoint(spec.needs):
            absent.append(spec)
        else:  # as --model and --table by --predictions
            replaced.add(spec.flag)
    for spec, text in zip(absent, rest, strict=False):
        given[spec.flag] = convert(spec, text)
    rest = rest[len(absent) :]
    if rest:
        remedy = "write each value after its option, and quote values with spaces"
        raise UsageError("A value without an option", f"'{rest[0]}'", remedy)
    if not incomplete:
        _require_all(known.values(), given, command)
    return given


def _remedy_of_unknown(flag: str, known: Collection[str], otherwise: str) -> str:
    if flag in FAMILIAR_MODES:
        return FAMILIAR_MODES[flag]
    if flag in FAMILIAR:  # by its spelling it would be near to others by chance
        same = [option for option in FAMILIAR[flag] if option in known]
        return f"write {same[0]}" if same else otherwise
    return nearest(flag, known, otherwise)


def leading_flags(command: str) -> tuple[str, ...]:
    """Return the flags that a command line may omit where their values come first, in order."""
    return tuple(getattr(find(command), "leading", ()))


def output_folder(command: str, column: str) -> Path:
    """Return the folder of a run whose options name none: a new one, or a run's, of this name.

    >>> str(output_folder("train", "pH (soil)")), str(output_folder("search", "pH"))
    ('pH (soil)', 'pH-search')
    """
    folder, files = Path(column if command == "train" else f"{column}-{command}"), list[str]()
    is_name = re.fullmatch(r"(?!\.*$)[^~\-\s/]([^/]*[^/\s])?", column) and column.isprintable()
    if is_name and os.path.isdir(folder) and not run_files.recognized(folder):
        files = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    if not is_name or (files and run_files.RECORD not in files):
        evidence = f"'{folder}' has {first_few(files)}" if files else f"'{column}'"
        cause = "No folder for a run can have the name of the column"
        raise UsageError(cause, evidence, "add --output-dir")
    return folder


def _require_all(
    options: Iterable[OptionSpec], given: Collection[str], command: str, form: str = ""
) -> None:
    """Check that every required option is given; `form` of a command line shows where."""
    lacking = [metavar(spec) if spec.first else spec.flag
               for spec in options if spec.required and spec.flag not in given]  # fmt: skip
    if lacking and form:
        remedy = f"give them before the command: `{form}`"
        raise UsageError(f"`{command}` lacks options of its own", ", ".join(lacking), remedy)
    if lacking:
        remedy = f"give a value for {'each' if len(lacking) > 1 else 'it'}"
        raise UsageError(f"`{command}` lacks required options", ", ".join(lacking), remedy)


def parse_command(
    command: str,
    argv: Sequence[str],
    *,
    program: str = "aam",
    others: Collection[str] = (),
    incomplete: bool = False,
) -> dict[str, Any]:
    """Return flag -> value of the options that a command line gives to a command of `aam`."""
    options = options_of(command)
    given = parse_options(
        (*options, CONFIG), argv, command, program=program, others=others, incomplete=True
    )
    if (file := given.pop(CONFIG.flag, None)) is not None:
        given = {**read_config(file, options, command), **given}
    output, column = "--output-dir", given.get("--metadata-column")
    named_after = bool(leading_flags(command)) and any(spec.flag == output for spec in options)
    if named_after and output not in given and column is not None:
        given[output] = output_folder(command, str(column))
    if not incomplete:
        named = [spec for spec in options if not named_after or spec.flag != output]
        _require_all(named, given, command)
        require_consistent(_built(command, given))
    return given


def _built(command: str, given: Mapping[str, Any]) -> Any:
    """Return the options of a command; what is absent is None, an output the null device."""
    values: dict[str, Any] = {
        spec.flag: Path(os.devnull) if spec.role == "output" else None
        for spec in options_of(command)
        if spec.required
    }
    return build(typing.cast(type, find(command)), {**values, **given})


def arguments(options: Iterable[OptionSpec], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that give the options of flag -> value, as far as they are `options`."""
    known = {spec.flag: spec for spec in options}
    words: list[str] = []
    for flag, value in given.items():
        if flag not in known:
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif known[flag].repeated:
            words += [f"{flag}={item}" for item in value]
        elif isinstance(value, tuple):
            words += [flag, *map(str, value)]
        elif str(value).startswith("-"):
            words.append(f"{flag}={value}")
        else:
            words += [flag, str(value)]
    return tuple(words)


# --- values of a file


def read_config(path: Path, options: Iterable[OptionSpec], command: str) -> dict[str, Any]:
    """Return flag -> value of the options that the file of --config gives to a command."""
    # msgspec and PyYAML take 25 ms, which only --config costs.
    from aam.contract.records import RecordEntries, Sourced, read_json, read_yaml_entries

    known = {spec.field: spec for spec in options}
    path = path / "run.json" if path.is_dir() else path
    given: dict[str, Any] = {}
    if path.suffix != ".json":
        keys = [key for name in known for key in (name, name.replace("_", "-"))]
        remedy = f"see `aam {command} --help`"
        for key, entry in read_yaml_entries(path, "file for --config", keys, remedy).items():
            given |= typed(known[key.replace("-", "_")], entry)
        return given
    record = read_json(path, RecordEntries, "run record", "give the run.json of a run")
    if record.command != command:
        evidence = f"'{path}' is of `aam {record.command}`"
        remedy = f"give one of `aam {command}`"
        raise UsageError("A run record of another command", evidence, remedy)
    for name, value in flat(record.options).items():
        if name not in known:
            otherwise = "the run is of another version; give its options by hand"
            remedy = nearest(name, known, otherwise)
            raise UsageError(f"`{command}` has no such option", f"'{name}' in '{path}'", remedy)
        spec = known[name]
        default = list(spec.default) if isinstance(spec.default, tuple) else spec.default
        if spec.role == "output" or name in _NOT_FROM_A_RECORD or value in (None, default):
            continue
        # The path of an input is absolute, its value as it was given.
        values = value if isinstance(value, list) else [value]
        inputs = {flag: file.path for flag, file in record.inputs.items()}
        stored = [
            inputs.get(flag) or value for flag, value in numbered(flag_of(name), values).items()
        ]
        given |= typed(spec, Sourced(stored if isinstance(value, list) else stored[0], str(path)))
    return given


def typed(spec: OptionSpec, entry: Sourced[Any]) -> dict[str, Any]:
    """Return the value that a file gives to an option, as flag -> value."""
    value = entry.value
    if value is None and type(None) in alternatives(spec.type):
        return {spec.flag: None}
    if isinstance(value, bool) and spec.type is bool:
        return {spec.flag: value}
    parts = value if isinstance(value, list) else [value]
    if any(isinstance(part, bool) or not isinstance(part, (str, int, float)) for part in parts):
        evidence = f"{spec.flag} '{value}' in {entry.source}"
        remedy = "write it in quotes if it is text"
        raise ConfigurationError("Not a value of an option", evidence, remedy)
    argv = [spec.flag, *map(str, parts)]
    if spec.repeated:
        argv = [f"{spec.flag}={part}" for part in parts]
    try:
        given, remaining = parse_known([spec], argv)
    except UsageError as error:
        evidence = f"{error.evidence} in {entry.source}"
        raise UsageError(error.cause, evidence, error.remedy) from error
    if remaining:
        evidence = f"{spec.flag} {value} in {entry.source}"
        raise UsageError("Several values for an option that takes one", evidence, "give one")
    return given


# --- a command line


@dataclass(frozen=True)
class ParsedCommand:
    """A command of `aam`, of one or two words, and its options that are given, flag -> value."""

    command: str
    given: Mapping[str, Any] = field(default_factory=dict)  # also those of `wrapped`
    wrapped: str = field(default="", kw_only=True)  # the command that it wraps, "" without one
    program: tuple[str, ...] = field(default=(), kw_only=True)  # arguments of a program it wraps

    @property
    def options(self) -> tuple[OptionSpec, ...]:
        """The declarations of its options and of those of the command that it wraps."""
        return options_of(self.command) + wrapped_options(self.command, self.wrapped)

    def option(self, flag: str) -> OptionSpec | None:
        """Return the declaration of an option; None if the command has no such option."""
        return next((spec for spec in self.options if spec.flag == flag), None)

    def value(self, flag: str) -> Any:
        """Return the value of an option, its default included; None without such an option."""
        spec = self.option(flag)
        return self.given.get(flag, spec.default if spec else None)

    def build(self) -> Any:
        """Return the options of the command itself."""
        return _built(self.command, self.given)

    def build_wrapped(self) -> Any:
        """Return the options of the command that it wraps, or the arguments of a program."""
        if not self.wrapped:
            return self.program
        flags = {spec.flag for spec in wrapped_options(self.command, self.wrapped)}
        return _built(self.wrapped, {k: v for k, v in self.given.items() if k in flags})

    @property
    def uses_network(self) -> bool:
        """Whether it computes with the network, by the values that are given."""
        return bool(self.wrapped) or uses_network(self.build())

    @property
    def computes_on_gpu(self) -> bool:
        """Whether it computes on a GPU where there is one."""
        return self.value("--device") not in (None, "cpu") and self.uses_network

    @property
    def starts_ranks(self) -> bool:
        """Whether one process starts those of all GPUs of its node, as its class declares."""
        return bool(getattr(find(self.command), "starts_ranks", False))

    def paths(self, role: Role) -> tuple[tuple[OptionSpec, Path], ...]:
        """Return option and path of everything that is read ("input") or written ("output")."""
        of_role = (spec for spec in self.options if spec.role == role)
        given = ((spec, self.given.get(spec.flag)) for spec in of_role)
        items = ((s, item) for s, v in given for item in (v if isinstance(v, tuple) else (v,)))
        return tuple((spec, path) for spec, path in items if isinstance(path, Path))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments after the command that give these values."""
        words = arguments(options_of(self.command), self.given)
        if self.wrapped:
            of_wrapped = wrapped_options(self.command, self.wrapped)
            return (*words, self.wrapped, *arguments(of_wrapped, self.given))
        return (*words, PROGRAM, *self.program) if self.program else words

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line that gives these values."""
        return (*self.command.split(), *self.arguments)

    def with_values(self: Self, values: Mapping[str, Any]) -> Self:
        """Return the command with values of options added or replaced."""
        return replace(self, given={**self.given, **values})


def split_command(
    argv: Sequence[str], more: Iterable[str] = (), program: str = "aam"
) -> tuple[str, list[str]]:
    """Split a command line into the name of its command, of one or two words, and the rest."""
    known = (*names(), *more)
    if not argv:
        raise UsageError("No command is named", f"`{program}`", f"see `{program} --help`")
    if argv[0].startswith("-"):
        remedy = f"write it after the command: `{program} COMMAND {' '.join(argv[:2])}`"
        raise UsageError("An option before the command", f"'{argv[0]}'", remedy)
    for words in (2, 1):
        name = " ".join(argv[:words])
        if name in known:
            return name, list(argv[words:])
    longer = [command for command in known if command.startswith(f"{name} ")]
    if longer:
        near = longer if len(argv) > 1 else ()
        remedy = nearest(" ".join(argv[:2]), near, f"give `{'` or `'.join(longer)}`")
        raise UsageError("Missing subcommand", f"`{name}`", remedy)
    remedy = nearest(name, known, f"see `{program} --help`")
    raise UsageError("No such command", f"'{name}'", remedy)


def _end_of_options(name: str, words: Sequence[str]) -> int:
    """Return the place of the command that a command wraps, or of the `--` before a program."""
    known = {spec.flag: spec for spec in (*options_of(name), CONFIG)}
    takes_word = any(spec.first for spec in known.values())
    end, several, wraps = 0, False, ", ".join(WRAPPERS[name])
    while end < len(words) and words[end] not in WRAPPERS[name]:
        word = words[end]
        if word == PROGRAM:
            if name in PROGRAMS:
                break
            raise UsageError(f"`{name}` runs no other program", "--", f"`{name}` takes {wraps}")
        if _names_an_option(word):
            # The value of an option is no command, though it may have the name of one.
            spec = known.get(_flag(word))
            several = spec is None or typing.get_origin(spec.type) is tuple
            end += not (spec is None or several or spec.type is bool or "=" in word)
        elif not (several or takes_word):
            remedy = nearest(word, WRAPPERS[name], f"`{name}` takes {wraps}")
            if name in PROGRAMS:
                remedy += f", or `{PROGRAM} PROGRAM ...`"
            raise UsageError(f"Not a command that `{name}` takes", f"'{word}'", remedy)
        end += 1
    return end


def parse(
    argv: Sequence[str],
    *,
    program: str = "aam",
    others: Collection[str] = (),
    incomplete: bool = False,
) -> ParsedCommand:
    """Parse a command line of `aam`; see `parse_options` for arguments and errors."""
    name, rest = split_command(argv, program=program)
    if name not in WRAPPERS:
        given = parse_command(name, rest, program=program, others=others, incomplete=incomplete)
        return ParsedCommand(name, given)
    options, end = options_of(name), _end_of_options(name, rest)
    before, wrapped, after = rest[:end], "".join(rest[end : end + 1]), rest[end + 1 :]
    wrapped, words = ("", tuple(after)) if wrapped == PROGRAM else (wrapped, ())
    # The command's own options.
    given = parse_command(name, before, program=program, others=others, incomplete=True)
    form = " ".join([program, name, "[OPTIONS]", wrapped or "COMMAND", "..."])
    if not incomplete:
        _require_all(options, given, name, form)
        require_consistent(_built(name, given))
        if not (wrapped or words or any(spec.first for spec in options)):
            remedy = f"give {' or '.join(WRAPPERS[name])}: `{form}`"
            raise UsageError(f"`{name}` lacks the command that it takes", "none was given", remedy)
    if not wrapped:
        return ParsedCommand(name, given, program=words)
    # The options of the wrapped command, among which none of the command's own may stand.
    flags = {spec.flag for spec in options} - {spec.flag for spec in options_of(wrapped)}
    used = [_flag(word) for word in after if _names_an_option(word)]
    if misplaced := [flag for flag in used if flag in flags]:
        cause = f"Options of `{name}` after the command that it takes"
        raise UsageError(cause, ", ".join(misplaced), f"write `{form}`")
    values = parse_command(wrapped, after, program=program, others=others, incomplete=True)
    effective = wrapped_options(name, wrapped)
    if not incomplete:
        _require_all(effective, values, wrapped)
        require_consistent(_built(wrapped, values))
    given |= {spec.flag: values[spec.flag] for spec in effective if spec.flag in values}
    return ParsedCommand(name, given, wrapped=wrapped)
