"""`ridgeline registrar`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from datetime import UTC, datetime

from ridgeline.api.names import REGISTRAR_PORT, ROUTER_PORT
from ridgeline.registrar import serve

KEY_VARIABLE = "ROUTER_KEY"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser of `ridgeline`."""
    parser = subparsers.add_parser(
        "registrar",
        help="keep the worker table of the router beside it equal to a fleet's role labels",
        description=f"Runs beside every router. The router's control-plane key is read from {KEY_VARIABLE}.",
    )
    parser.add_argument("--namespace", required=True, help="namespace of the fleet")
    parser.add_argument("--fleet", required=True, help="name of the fleet")
    parser.add_argument("--router-url", default=f"http://127.0.0.1:{ROUTER_PORT}", help="the router (%(default)s)")
    parser.add_argument("--port", type=int, default=REGISTRAR_PORT, help="port of metrics and state (%(default)s)")
    parser.add_argument("--log-format", choices=("json", "text"), default="json", help="form of the log (%(default)s)")
    parser.set_defaults(run=run)


PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run(args: argparse.Namespace) -> int:
    """Run until told to stop."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if args.log_format == "json" else logging.Formatter(PLAIN))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    key = os.environ.get(KEY_VARIABLE) or None
    settings = serve.Settings(args.namespace, args.fleet, args.router_url, args.port, router_key=key)
    asyncio.run(serve.run(settings))
    return 0


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
