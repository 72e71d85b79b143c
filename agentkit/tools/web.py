"""One request to a server that may be slow, broken or hostile: bounded in wall clock, size and memory.

Leaves out redirects, unpacking (a few kilobytes can hold gigabytes), and ending the look-up of a name early.
"""

import asyncio
from functools import lru_cache
from typing import Any

from agentkit.runs import parse_json
from agentkit.tools.runtime import run_blocking


class ReplyError(RuntimeError):
    """A server gave no reply that can be used. The message says why, and nothing that the server wrote."""


def post_json(who: str, url: str, body: dict[str, Any], **options: Any) -> Any:
    """A server's reply as parsed JSON; ``options`` are ``fetch``'s. Raises ReplyError: ``who`` and why."""
    try:
        status, reply = fetch("POST", url, json=body, **options)
        if status == 200:
            return parse_json(reply)
        why = f"answered with status {status}"
    except TimeoutError:
        why = "did not answer in time"
    except ConnectionError as error:
        why = f"cannot be reached ({error})"
    except ReplyError as error:
        why = f"gave a reply that {error}"
    except ValueError:
        why = "gave a reply that is not JSON"
    raise ReplyError(f"{who} {why}")


def fetch(method: str, url: str, *, timeout_s: float, most: int, **options: Any) -> tuple[int, bytes]:
    """Status and body of a server's reply, ``most`` bytes; the body of a status other than 200 is not read.

    ``timeout_s`` bounds the whole request, however the server spreads its reply; ``options`` are httpx's.
    Raises TimeoutError, ConnectionError (whose message names no header) or ReplyError.
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
