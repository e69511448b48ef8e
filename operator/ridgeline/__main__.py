"""The `ridgeline` command.

Each subcommand is a module with `add_parser(subparsers)` that sets `run`. Only the chosen one is imported: the
calculator needs nothing but the standard library, and the operator's clients take half a second to load.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline import __version__


@dataclass(frozen=True, slots=True)
class Command:
    """Where a subcommand lives and what `--help` says of it."""

    module: str
    help: str
    prints: bool = False
    """Whether its output is its purpose, and it is over when nobody reads on."""


COMMANDS = {
    "operator": Command("ridgeline.operator_command", "run the operator"),
    "registrar": Command("ridgeline.registrar.command", "keep a router's worker table equal to the role labels"),
    "roofline": Command(
        "ridgeline.roofline_command", "say what a model can do at best on a GPU, phase by phase", prints=True
    ),
    "replay": Command("ridgeline.replay_command", "simulate a fleet on a trace under several policies", prints=True),
    "demo": Command(
        "ridgeline.demo_command", "simulate a fleet through a day, under Ridgeline and static choices", prints=True
    ),
    "validate": Command("ridgeline.validate_command", "compare the cost model with measured points", prints=True),
    "crd": Command("ridgeline.crd_command", "print the CustomResourceDefinition of InferenceFleet", prints=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="ridgeline", description="Keeps every GPU of a vLLM fleet on the right side of the roofline."
    )
    parser.add_argument("--version", action="version", version=f"ridgeline {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        if name != chosen:
            subparsers.add_parser(name, help=command.help)
            continue
        try:
            importlib.import_module(command.module).add_parser(subparsers)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("ridgeline"):
                raise
            print(
                f"ridgeline {name}: the module {error.name} is not installed; "
                "run in Ridgeline's source folder: pip install '.[operator]'",
                file=sys.stderr,
            )
            return 1
    args = parser.parse_args(words)
    try:
        status = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        if not COMMANDS[args.command].prints:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
