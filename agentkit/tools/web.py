"""One request to a server that may be slow, broken or hostile: bounded in wall clock, size and memory.

Leaves out redirects, unpacking (a few kilobytes can hold gigabytes), and ending the look-up of a name early.
"""

import asyncio
from functools import lru_cache
from typing import Any

from agentkit.runs import parse_json
from agentkit.tools.runtime import run_blocking


class ReplyError(ValueError):
    """A server gave no reply that can be used. The message says why, and nothing that the server wrote."""


def post_json(
    who: str, url: str, body: dict[str, Any], *, timeout_s: float, most: int, **options: Any
) -> Any:
    """A server's reply as parsed JSON, of ``most`` bytes; the body of a status other than 200 is not read.

    ``timeout_s`` bounds the whole request, however the server spreads its reply; ``options`` are httpx's.
    Raises ReplyError: ``who`` and why, without any header.
    """
    try:
        return parse_json(run_blocking(asyncio.wait_for(_posted(url, body, most, options), timeout_s)))
    except TimeoutError:
        why = "did not answer in time"
    except ReplyError as error:
        raise ReplyError(f"{who} {error}") from None
    except ValueError:  # any other
        why = "gave a reply that is not JSON"
    raise ReplyError(f"{who} {why}")


async def _posted(url: str, body: dict[str, Any], most: int, options: dict[str, Any]) -> bytes:
    import httpx

    headers = {"Accept-Encoding": "identity"} | options.pop("headers", {})
    try:
        async with (
            httpx.AsyncClient(verify=_certificates(), timeout=None, follow_redirects=False) as client,
            client.stream("POST", url, json=body, headers=headers, **options) as reply,
        ):
            if reply.status_code != 200:
                raise ReplyError(f"answered with status {reply.status_code}")
            if reply.headers.get("Content-Encoding", "identity").strip().casefold() != "identity":
                raise ReplyError("gave a reply that is compressed, and was not asked to be")
            content = bytearray()
            async for piece in reply.aiter_raw():
                content += piece
                if len(content) > most:
                    raise ReplyError(f"gave a reply that is larger than {most} bytes")
            return bytes(content)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as error:
        raise ReplyError(f"cannot be reached ({type(error).__name__})") from None


@lru_cache(maxsize=1)
def _certificates() -> Any:
    """Those a client trusts, read once: they take longer than many a request."""
    import httpx

    return httpx.create_ssl_context()
