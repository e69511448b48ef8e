"""Command lines: our defaults, and what a user put beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def flag_of(argument: str) -> str | None:
    """Name of the flag that an argument sets, None for a value.

    `--kv_transfer_config={}` and `--kv-transfer-config.kv_role` both set `--kv-transfer-config`:
    vLLM reads underscores as dashes and a dotted name as a part of the whole.
    """
    if not argument.startswith("-"):
        return None
    name = argument.split("=", 1)[0]
    if not name.startswith("--"):
        return name
    return "--" + name[2:].split(".", 1)[0].replace("_", "-")


def flags(arguments: Iterable[str]) -> frozenset[str]:
    """All flags that a command line sets."""
    return frozenset(flag for argument in arguments if (flag := flag_of(argument)))


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """Value of a flag, the last one where it is given more than once; None where it is absent."""
    value = None
    for index, argument in enumerate(arguments):
        if flag_of(argument) != flag:
            continue
        if "=" in argument:
            value = argument.split("=", 1)[1]
        else:
            value = arguments[index + 1] if index + 1 < len(arguments) else ""
    return value


def with_defaults(defaults: Sequence[tuple[str, ...]], arguments: Sequence[str]) -> list[str]:
    """A command line: each default whose flag the user does not set, then what the user gave."""
    given = flags(arguments)
    kept = [word for default in defaults if flag_of(default[0]) not in given for word in default]
    return [*kept, *arguments]
