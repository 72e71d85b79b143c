"""One request to a server that may be slow, broken or hostile: bounded in wall clock, size and memory.

Leaves out redirects, unpacking (a few kilobytes can hold gigabytes), and ending the look-up of a name early.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

from agentkit.tools.runtime import run_blocking


class ReplyError(RuntimeError):
    """A reply that was not read to its end. The message says what it is, as in "is larger than 10 bytes"."""


def fetch(method: str, url: str, *, timeout_s: float, most: int, **options: Any) -> tuple[int, bytes]:
    """Status and body of a server's reply; the body of a status other than 200 is not read.

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
    return run_blocking(asyncio.wait_for(_fetch(method, url, most, options), timeout_s))


async def _fetch(method: str, url: str, most: int, options: dict[str, Any]) -> tuple[int, bytes]:
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
