"""One request to a hostile server: ended in time, in bounded memory, by a sentence."""

import gzip
import socket
import threading
import time
from contextlib import suppress

import psutil
import pytest

from agentkit.tools.web import ReplyError, post_json

OK = b"HTTP/1.1 200 OK\r\n"
BUSY = 15.0  # what a loaded machine may add, in seconds


@pytest.fixture
def served(monkeypatch):
    """Start a server that sends pieces, a while apart; gives its address."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    servers = []

    def start(pieces, every_s=0.0, hold_s=0.0):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve():
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    while (piece := connection.recv(65_536)) and not piece.endswith(b"{}"):
                        pass  # headers and body may come apart
                    for piece in pieces:
                        connection.sendall(piece)
                        time.sleep(every_s)
                    time.sleep(hold_s)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/"

    yield start
    for server in servers:
        server.close()


def fetch(url: str, timeout_s: float = 20, most: int = 100):
    return post_json("the server", url, {}, timeout_s=timeout_s, most=most)


def drip(data: bytes):
    return [data[i : i + 1] for i in range(len(data))]


def test_a_reply_is_read_and_no_redirect_followed(served):
    assert fetch(served([OK + b"Content-Length: 3\r\n\r\n[1]"])) == [1]
    moved = b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(ReplyError, match="the server answered with status 302"):
        fetch(served([moved]))


DRIPS = [
    (drip(OK + b"X: " + b"y" * 500 + b"\r\n\r\n"), 0.1),
    ([OK + b"Content-Length: 500\r\n\r\n", *drip(b"x" * 500)], 0.1),
    ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 500, 0.1),
    ([OK + b"Transfer-Encoding: chunked\r\n\r\n", *[b"1;" + b"e" * 9 + b"\r\nx\r\n"] * 500], 0.1),
    ([], 0.0),
]


def test_a_server_that_drips_is_left_when_the_time_is_up(served):
    for pieces, every_s in DRIPS:
        start = time.monotonic()
        with pytest.raises(ReplyError, match="did not answer in time"):
            fetch(served(pieces, every_s, hold_s=30), timeout_s=0.6, most=10**6)
        assert 0.5 < time.monotonic() - start < 0.6 + BUSY


def test_a_reply_that_holds_gigabytes_is_not_unpacked(served):
    inner = gzip.compress(bytes(300 * 2**20), 1)
    bomb = gzip.compress(inner, 9)
    packed = OK + b"Content-Encoding: gzip, gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
    before = psutil.Process().memory_info().rss
    with pytest.raises(ReplyError, match="compressed"):
        fetch(served([packed]), most=10**6)
    assert psutil.Process().memory_info().rss - before < 50 * 2**20


def test_a_body_ends_at_its_bound(served):
    with pytest.raises(ReplyError, match="larger than 100000 bytes"):
        fetch(served([OK + b"\r\n", *[bytes(65_536)] * 1000]), most=100_000)


def test_an_address_that_leads_nowhere_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    for url in (
        "nonsense",
        "http://127.0.0.1:1/",
        "http://no-such-host.invalid",
        "http://[",
        "ftp://x/",
        "http://\0/",
    ):
        with pytest.raises(ReplyError, match="cannot be reached"):
            fetch(url)
