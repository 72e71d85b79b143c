"""Search through servers and one request to a hostile one: faults are sentences, in time and bounded memory."""

import asyncio
import gzip
import json
import socket
import threading
import time
from contextlib import suppress

import psutil
import pytest
from servers import serving

from agentkit import ToolCall
from agentkit.tools import RetrievalServer, search_passages
from agentkit.tools.cache import ToolCache
from agentkit.tools.environments import SearchEnvironment
from agentkit.tools.runtime import run_call
from agentkit.tools.web import ReplyError, post_json

BODIES = {
    "notjson": b"<html>", "nothing": b"", "null": b"null", "list": b"[1]", "empty": b"{}", "wrong": b'{"result": [[1, 2]]}',
    "deep": b"[" * 200_000, "badbytes": b'{"result": "\xff"}', "number": b'{"result": 5}',
    "odd": b'{"result": [[{"document": {"contents": 5}}]]}',
}  # fmt: skip


def as_wished(body):
    """What the query names: a status, a body, half a reply, or passages."""
    query = body["queries"][0]
    passages = [{"document": {"contents": f'"T{n}"\nabout {query}'}, "score": 1.0} for n in range(9)]
    good = json.dumps({"result": [passages[: body["topk"]]]}).encode()
    status = next((code for code in (500, 404, 302) if f"status{code}" in query), 200)
    sent = next((found for word, found in BODIES.items() if word in query), good)
    return status, sent[: len(sent) // 2] if "cutoff" in query else sent


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(as_wished) as found:
        yield found


def test_a_retrieval_server_is_asked_in_search_r1s_form(server):
    found = search_passages(RetrievalServer(server.url), "rivers", 2)
    assert found == '[1] "T0" about rivers\n[2] "T1" about rivers'
    path, _, body = server.seen[0]
    assert (path, body) == ("/retrieve", {"queries": ["rivers"], "topk": 2, "return_scores": True})
    assert RetrievalServer(f"{server.url}/retrieve").search("rivers", 1) == ['"T0" about rivers']


FAULTS = [
    ("status500", "status 500"), ("status404", "status 404"), ("status302", "status 302"), ("notjson", "not JSON"),
    ("nothing", "not JSON"), ("cutoff", "not JSON"), ("deep", "not JSON"), ("badbytes", "not JSON"), ("null", "form"),
    ("list", "form"), ("empty", "form"), ("wrong", "form"), ("number", "form"), ("odd", "form"),
]  # fmt: skip


def test_a_servers_fault_is_a_sentence(server):
    for wish, says in FAULTS:
        with pytest.raises(ValueError, match=says):
            search_passages(RetrievalServer(server.url), wish)


def test_a_servers_answers_are_kept_where_its_index_has_a_version(server):
    for version, asked in ((None, 2), ("wiki-18", 1)):
        server.seen.clear()
        environment = SearchEnvironment(backend=RetrievalServer(server.url, version=version))
        cache, call = ToolCache(), ToolCall("search", {"query": "rivers"})
        for _ in range(2):
            assert asyncio.run(run_call(call, environment, cache=cache)).ok
        assert len(server.seen) == asked


# ---- one request
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
    no_host = "http://127.0.0.1:1/", "http://no-such-host.invalid"
    for url in (*no_host, "nonsense", "http://[", "ftp://x/", "http://\0/"):
        with pytest.raises(ReplyError, match="cannot be reached"):
            fetch(url)
