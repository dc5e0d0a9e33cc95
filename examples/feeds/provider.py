"""The other side of the demo: a web server that answers for every feed of a list, and keeps its own log.

It is a process of its own and shares nothing with the service or timerd but the list of URLs. Its log has a line for
each request, with the time it came in; the demo is judged by that log alone.

    python -m examples.feeds.provider --urls FILE --log FILE [--seed N] [--slow SECONDS] [--port P]

A feed's URL goes into the query: `/?u=<url>` (see `address`). The line `provider ready on http://H:P` on stderr says
that it listens.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple, TextIO
from urllib.parse import quote

from aiohttp import web

from .publication import Answer, Kind, Publication, deal

PARENT_CHECK_S = 1.0


class Request(NamedTuple):
    """A line of the log."""

    at: int
    """When the request came in, in Unix milliseconds."""
    url: str
    status: int
    failed: bool
    """The poll that got this answer can't have been a good one."""
    how: str


def address(base: str, url: str) -> str:
    """Where the provider at `base` answers for a feed."""
    return f"{base}/?u={quote(url, safe='')}"


def read_log(path: Path) -> list[Request]:
    """All requests, in the order in which they came."""
    with path.open() as lines:
        return [Request(**json.loads(line)) for line in lines]


class Provider:
    def __init__(self, publications: dict[str, Publication], log: TextIO, slow_s: float) -> None:
        self._publications = publications
        self._log = log
        self._slow_s = slow_s

    async def handle(self, request: web.Request) -> web.StreamResponse:
        now_ms = time.time_ns() // 1_000_000
        url = request.query.get("u", "")
        publication = self._publications.get(url)
        if publication is None:
            answer = Answer(404, {}, b"not on the list", Kind.GONE)
        else:
            headers = request.headers
            answer = publication.answer(now_ms, headers.get("If-None-Match"), headers.get("If-Modified-Since"))
        how = answer.trouble.value if answer.trouble else "unmodified" if answer.status == 304 else "whole"
        line = Request(now_ms, url, answer.status, answer.trouble is not None, how)
        self._log.write(json.dumps(line._asdict()) + "\n")

        if answer.trouble is Kind.DROPPING:
            return await self._drop(request, answer, now_ms)
        if answer.trouble is Kind.SLOW:
            return await self._crawl(request, answer, now_ms)
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    async def _drop(self, request: web.Request, answer: Answer, now_ms: int) -> web.StreamResponse:
        """Close the connection, at once or within the body."""
        response = web.StreamResponse(headers={**answer.headers, "Content-Length": str(len(answer.body))})
        if now_ms % 2:
            await response.prepare(request)
            await response.write(answer.body[: len(answer.body) // 2])
        if request.transport is not None:
            request.transport.abort()
        return response

    async def _crawl(self, request: web.Request, answer: Answer, now_ms: int) -> web.StreamResponse:
        """Take longer than anybody waits: silent until the end, or with a byte now and then."""
        response = web.StreamResponse(headers={**answer.headers, "Content-Length": str(len(answer.body))})
        try:
            if now_ms % 2:
                await asyncio.sleep(self._slow_s)
                await response.prepare(request)
                await response.write(answer.body)
            else:
                await response.prepare(request)
                for at in range(len(answer.body)):
                    await response.write(answer.body[at : at + 1])
                    await asyncio.sleep(self._slow_s / len(answer.body))
        except ConnectionError:
            pass  # What this feed is made for: nobody waited.
        return response


async def serve(options: argparse.Namespace) -> None:
    urls = options.urls.read_text().splitlines()
    publications = deal(urls, options.seed, time.time_ns() // 1_000_000)
    with options.log.open("w", buffering=1) as log:
        app = web.Application()
        app.router.add_get("/", Provider(publications, log, options.slow).handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", options.port, backlog=1024)
        await site.start()
        port = runner.addresses[0][1]
        print(f"provider ready on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        parent = os.getppid()
        try:
            # Ends with whoever started it, also when that had no chance to say goodbye.
            while os.getppid() == parent:  # noqa: ASYNC110 - the system has no event for it
                await asyncio.sleep(PARENT_CHECK_S)
        finally:
            await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.feeds.provider", description=__doc__.partition("\n")[0])
    parser.add_argument("--urls", type=Path, required=True, help="a file with a feed's URL a line")
    parser.add_argument("--log", type=Path, required=True, help="where each request is written down, as JSON lines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slow", type=float, default=6.0, help="seconds that a slow answer takes")
    parser.add_argument("--port", type=int, default=0)
    try:
        asyncio.run(serve(parser.parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
