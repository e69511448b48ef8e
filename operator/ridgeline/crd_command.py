"""`ridgeline crd`: what `kubectl apply` needs before the first fleet."""

from __future__ import annotations

import argparse
import sys

from ridgeline.api import crd


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser of `ridgeline`."""
    parser = subparsers.add_parser(
        "crd",
        help="print the CustomResourceDefinition of InferenceFleet",
        description="Prints the CustomResourceDefinition: ridgeline crd | kubectl apply --server-side -f -",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the manifest."""
    sys.stdout.write(crd.render())
    return 0
