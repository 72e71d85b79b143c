"""One request to a server that may be slow, broken or hostile: bounded in wall clock, size and memory.

Leaves out redirects, and unpacking: a few kilobytes can hold gigabytes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import lru_cache
from typing import Any


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
    import httpx

    headers = {"Accept-Encoding": "identity"} | options.pop("headers", {})
    deadline = _Deadline(timeout_s)
    try:
        with (
            httpx.Client(verify=_certificates(), timeout=timeout_s, follow_redirects=False) as client,
            client.stream(
                method, url, headers=headers, extensions={"trace": deadline.note}, **options
            ) as reply,
        ):
            status, body = reply.status_code, _body(reply, most)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, OSError) as error:
        if deadline.passed or isinstance(error, httpx.TimeoutException):
            raise TimeoutError from None
        raise ConnectionError(type(error).__name__) from None
    finally:
        deadline.timer.cancel()
    if deadline.passed:  # a reply without a length ends where the connection does
        raise TimeoutError
    return status, body


def _body(reply: Any, most: int) -> bytes:
    if reply.status_code != 200:
        return b""
    if reply.headers.get("Content-Encoding", "identity").strip().casefold() != "identity":
        raise ReplyError("is compressed, and was not asked to be")
    body = bytearray()
    for piece in reply.iter_raw():
        body += piece
        if len(body) > most:
            raise ReplyError(f"is larger than {most} bytes")
    return bytes(body)


class _Deadline:
    """Shuts a request's connection when the time is up: httpx bounds every read, but not all of them together."""

    def __init__(self, timeout_s: float):
        self.passed, self._socket = False, None
        self.timer = threading.Timer(timeout_s, self._shut)
        self.timer.daemon = True
        self.timer.start()

    def note(self, event: str, info: dict[str, Any]) -> None:
        """What httpx tells of a request under way: here, when it has a connection."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.passed:
                self._shut()

    def _shut(self) -> None:
        self.passed = True
        with contextlib.suppress(OSError, TypeError):  # there is none yet, or it is closed already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not TLS's own, which may wait


@lru_cache(maxsize=1)
def _certificates() -> Any:
    """Those a client trusts, read once: they take longer than many a request."""
    import httpx

    return httpx.create_ssl_context()
