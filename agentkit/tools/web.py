"""One request to a server that may be slow, broken or hostile: bounded in wall clock, size and memory."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

LATE_S = 1.0  # for a request that has to be given up, as while a name is looked up


class ReplyError(RuntimeError):
    """A reply that was not read to its end. The message says what it is, as in "is larger than 10 bytes"."""


def fetch(method: str, url: str, *, timeout_s: float, most: int, **options: Any) -> tuple[int, bytes]:
    """Status and body of a server's reply; the body of a status other than 200 is not read.

    Redirects are not followed, and no reply is unpacked: a few kilobytes can hold gigabytes.

    Args:
        method: GET or POST.
        url: the address.
        timeout_s: wall clock of the whole request, however the server spreads its reply.
        most: bytes of a body.
        options: what httpx's stream takes besides, such as json, params and headers.

    Raises:
        TimeoutError: it took longer.
        ConnectionError: there was no connection or no reply in HTTP; the message names no header.
        ReplyError: the body is too large or packed.
    """
    done: Future[tuple[int, bytes]] = Future()

    async def ask() -> None:
        try:
            async with asyncio.timeout(timeout_s):
                found = await _ask(method, url, most, options)
            done.set_result(found)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=lambda: asyncio.run(ask()), name="fetch", daemon=True).start()
    return done.result(timeout_s + LATE_S)


async def _ask(method: str, url: str, most: int, options: dict[str, Any]) -> tuple[int, bytes]:
    import httpx

    headers = {"Accept-Encoding": "identity"} | options.pop("headers", {})
    try:
        async with (
            httpx.AsyncClient(verify=_certificates(), timeout=None, follow_redirects=False) as client,
            client.stream(method, url, headers=headers, **options) as reply,
        ):
            if reply.status_code != 200:
                return reply.status_code, b""
            if reply.headers.get("Content-Encoding", "identity").strip().casefold() != "identity":
                raise ReplyError("is compressed, and was not asked to be")
            body = bytearray()
            async for piece in reply.aiter_raw():
                body += piece
                if len(body) > most:
                    raise ReplyError(f"is larger than {most} bytes")
            return 200, bytes(body)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as error:
        raise ConnectionError(type(error).__name__) from None


@lru_cache(maxsize=1)
def _certificates() -> Any:
    """Those a client trusts, read once: they take longer than many a request."""
    import httpx

    return httpx.create_ssl_context()
