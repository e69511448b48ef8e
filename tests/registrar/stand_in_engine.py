"""A stand-in for a vLLM engine: the few routes that a router needs, and no model behind them.

It answers `/health`, `/v1/models` and `/v1/completions` (prefill hand-off and plain), and counts what it was
asked, so that a test can tell which engine did what.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "stand-in-model"


@dataclass(slots=True)
class StandInEngine:
    """What one stand-in has been asked."""

    url: str
    seconds_per_request: float = 0.0
    healthy: bool = True
    kinds: list[str] = field(default_factory=list)
    """Of each completion: mixed, prefill or decode."""

    async def health(self, _: web.Request) -> web.Response:
        """`GET /health`."""
        return web.Response(status=200 if self.healthy else 503)

    async def models(self, _: web.Request) -> web.Response:
        """`GET /v1/models`."""
        entry = {"id": MODEL, "object": "model", "owned_by": "stand-in", "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [entry]})

    async def completions(self, request: web.Request) -> web.Response:
        """`POST /v1/completions`."""
        transfer = (await request.json()).get("kv_transfer_params") or {}
        if transfer.get("do_remote_decode"):
            kind = "prefill"
        else:
            kind = "decode" if transfer.get("do_remote_prefill") else "mixed"
        self.kinds.append(kind)
        await asyncio.sleep(self.seconds_per_request)
        answer: dict[str, Any] = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 0,
            "model": MODEL,
            "choices": [{"index": 0, "text": "word", "finish_reason": "length"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        if kind == "prefill":
            answer["kv_transfer_params"] = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_engine_id": self.url,
                "remote_block_ids": [1],
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
            }
        return web.json_response(answer)


@asynccontextmanager
async def stand_in_engine(
    host: str = "127.0.0.1", port: int = 0, seconds_per_request: float = 0.0
) -> AsyncIterator[StandInEngine]:
    """Run a stand-in for the length of the block; port 0 takes a free one."""
    engine = StandInEngine("", seconds_per_request)
    app = web.Application()
    app.router.add_get("/health", engine.health)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_post("/v1/completions", engine.completions)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        engine.url = f"http://{host}:{runner.addresses[0][1]}"
        yield engine
    finally:
        await runner.cleanup()
