"""`ridgeline operator`: its flags, its log, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import secrets
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from ridgeline.act.api import NoClusterError
from ridgeline.api.names import OPERATOR_HEALTH_PORT, OPERATOR_METRICS_PORT
from ridgeline.process import ProcessOptions, StartError, run_operator
from ridgeline.reconcile import Options

SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
NOISY_LOGGERS = ("kopf", "kubernetes", "aiohttp", "asyncio")
"""Loggers that tell of every event; their warnings are still wanted."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser of `ridgeline`."""
    parser = subparsers.add_parser(
        "operator",
        help="run the operator",
        description="Runs the operator: in a pod with its service account, elsewhere with KUBECONFIG.",
    )
    parser.add_argument(
        "--prometheus-url", required=True, type=_url, metavar="URL", help="where the recording rules are read"
    )
    parser.add_argument(
        "--prometheus-token-file", type=Path, metavar="FILE", help="file with a bearer token for Prometheus"
    )
    parser.add_argument(
        "--operator-image",
        required=True,
        metavar="IMAGE",
        help="image of Ridgeline, for the exporter and the registrar in the pods of fleets",
    )
    parser.add_argument(
        "--operator-image-pull-policy",
        choices=("Always", "IfNotPresent", "Never"),
        default="IfNotPresent",
        help="how nodes fetch that image (%(default)s)",
    )
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        dest="namespaces",
        type=_namespace,
        metavar="NAME",
        help="namespace whose fleets are kept; repeatable; none means all",
    )
    parser.add_argument(
        "--lease-namespace", default=own_namespace(), type=_namespace, metavar="NAME", help="of the Lease (%(default)s)"
    )
    parser.add_argument("--lease-name", default="ridgeline-operator", metavar="NAME", help="of the Lease (%(default)s)")
    parser.add_argument(
        "--metrics-port", type=_port, default=OPERATOR_METRICS_PORT, metavar="PORT", help="/metrics (%(default)s)"
    )
    parser.add_argument(
        "--health-port",
        type=_port,
        default=OPERATOR_HEALTH_PORT,
        metavar="PORT",
        help="/healthz, /readyz (%(default)s)",
    )
    parser.add_argument(
        "--interval-seconds",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="pause between two looks at a fleet when nothing has changed (%(default)s)",
    )
    parser.add_argument(
        "--scrape-interval-seconds",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="how often Prometheus scrapes the engines: samples older than five of it are not acted on (%(default)s)",
    )
    parser.add_argument(
        "--rules-window-seconds",
        type=_seconds,
        default=45.0,
        metavar="S",
        help="window of the recording rules: a change is judged when it has passed (%(default)s)",
    )
    parser.add_argument(
        "--no-monitors", action="store_true", help="make no PodMonitors for fleets, even where the cluster knows them"
    )
    parser.add_argument(
        "--log-level",
        type=str.lower,
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="(%(default)s)",
    )
    parser.add_argument("--log-format", choices=("json", "text"), default="json", help="(%(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until told to stop: 0; until leadership or the cluster is lost: 1."""
    set_up_log(args.log_level, args.log_format)
    options = ProcessOptions(
        prometheus_url=args.prometheus_url,
        prometheus_token_file=args.prometheus_token_file,
        namespaces=tuple(dict.fromkeys(args.namespaces)),
        lease_namespace=args.lease_namespace,
        lease_name=args.lease_name,
        identity=own_identity(),
        metrics_port=args.metrics_port,
        health_port=args.health_port,
        reconcile=Options(
            operator_image=args.operator_image,
            operator_image_pull_policy=args.operator_image_pull_policy,
            interval_seconds=args.interval_seconds,
            scrape_interval_seconds=max(1, round(args.scrape_interval_seconds)),
            rules_window_seconds=args.rules_window_seconds,
            monitors=not args.no_monitors,
        ),
    )
    try:
        return asyncio.run(run_operator(options))
    except (NoClusterError, StartError) as error:
        print(f"ridgeline operator: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def set_up_log(level: str, form: str) -> None:
    """One handler on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":
        for name in NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message and, where there is one, the traceback."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def own_identity() -> str:
    """Who this process is in the Lease.

    A pod's name suffices: a container that is started again in the same pod takes its own lease over at once, and the
    one before it is dead by then. Elsewhere several operators may run on one host.
    """
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}_{secrets.token_hex(4)}"


def own_namespace() -> str:
    """Namespace of this pod, or `default` outside of a cluster."""
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or "default"
    except OSError:
        return "default"


# ---------------------------------------------------------------- what argparse refuses


def _url(text: str) -> str:
    if not re.match(r"https?://[^/\s]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write it like http://prometheus.monitoring:9090")
    return text


def _namespace(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a namespace")
    return text


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds between 0.1 and 3600")
    return value
