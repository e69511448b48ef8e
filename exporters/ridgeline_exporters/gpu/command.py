"""The command: its flags, its log, its threads, and how it ends."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

PORT = 9402
SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
HUNG_SECONDS = 120.0
"""A round of samples takes milliseconds. One that takes so long hangs in the driver; a new process may not."""
END_SECONDS = 5.0
LOG = "%(asctime)s %(levelname)s %(name)s: %(message)s"

DESCRIPTION = """\
Publishes what the NVIDIA GPUs of this node measure: memory bandwidth used, tensor-core and SM activity, NVLink bytes,
each with the pod that holds the GPU. It asks the driver through NVML once a second; ratios are means over ten seconds.

It needs the driver's libnvidia-ml.so.1, which NVIDIA's container toolkit brings into a container, and GPUs that have
GPM (Hopper and later); others are reported as such. Pods come from the kubelet's socket, which only root may open.
Serves /metrics, /healthz and /readyz."""

logger = logging.getLogger("ridgeline_exporters.gpu")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m ridgeline_exporters.gpu",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "--node",
        default=os.environ.get("NODE_NAME") or socket.gethostname(),
        metavar="NAME",
        help="the node's name, for the label `node` ($NODE_NAME, else the host's name: %(default)s)",
    )
    result.add_argument("--host", default="0.0.0.0", metavar="ADDRESS", help="where to listen (%(default)s)")  # noqa: S104
    result.add_argument("--port", type=_port, default=PORT, metavar="PORT", help="where to listen (%(default)s)")
    result.add_argument(
        "--pod-resources-socket",
        type=Path,
        default=SOCKET,
        metavar="PATH",
        help="the kubelet's socket; without it GPUs are reported without pods (%(default)s)",
    )
    result.add_argument(
        "--log-level",
        type=str.lower,
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="(%(default)s)",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit status."""
    args = parser().parse_args(arguments)
    logging.basicConfig(level=args.log_level.upper(), format=LOG, stream=sys.stderr, force=True)
    try:
        return serve(args)
    except ModuleNotFoundError as error:
        print(f"the module {error.name} is not installed; run: pip install 'ridgeline[gpu]'", file=sys.stderr)
        return 1


def serve(args: argparse.Namespace) -> int:
    """Measure, ask and publish until SIGTERM or SIGINT."""
    from ridgeline_exporters.gpu.metrics import GpuCollector
    from ridgeline_exporters.gpu.monitor import Monitor
    from ridgeline_exporters.gpu.nvml import Driver
    from ridgeline_exporters.gpu.ownership import Ownership
    from ridgeline_exporters.gpu.pod_resources import PodResources
    from ridgeline_exporters.gpu.server import GpuExporterServer

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    monitor, kubelet = Monitor(Driver()), PodResources(args.pod_resources_socket)
    ownership = Ownership(kubelet)
    registry = CollectorRegistry()
    registry.register(GpuCollector(args.node, monitor, ownership))

    def hangs() -> str:
        silent = monitor.silent_seconds
        return f"no sample for {silent:.0f} s: the driver hangs" if silent >= HUNG_SECONDS else ""

    def begins() -> str:
        return "" if monitor.started else "the first look at the GPUs is not over"

    try:
        server = GpuExporterServer((args.host, args.port), registry, hangs, begins)
    except OSError as error:
        print(f"cannot listen on {args.host}:{args.port}: {error.strerror}", file=sys.stderr)
        return 1
    threads = [
        threading.Thread(target=monitor.run, args=(stop,), name="nvml", daemon=True),
        threading.Thread(target=ownership.run, args=(stop,), name="pod-resources", daemon=True),
    ]
    for thread in threads:
        thread.start()
    server.start()
    logger.info("Serving /metrics of node %s on port %d.", args.node, server.port)
    while not stop.wait(1.0):  # a signal is only handled when the main thread runs
        pass
    server.shutdown()
    server.server_close()
    for thread in threads:
        thread.join(END_SECONDS)  # one that hangs in the driver ends with the process
    kubelet.close()
    logger.info("Stopped.")
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)
