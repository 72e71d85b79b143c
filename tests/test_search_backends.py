"""Search through servers: a real one in this process, with faulty replies; slow ones are in test_web.py."""

import asyncio
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentkit import ToolCall
from agentkit.tools import RetrievalServer, search_passages
from agentkit.tools.cache import ToolCache
from agentkit.tools.environments import SearchEnvironment
from agentkit.tools.runtime import run_call

BODIES = {
    "notjson": b"<html>", "nothing": b"", "null": b"null", "list": b"[1]", "empty": b"{}", "wrong": b'{"result": [[1, 2]]}',
    "deep": b"[" * 200_000, "badbytes": b'{"result": "\xff"}', "number": b'{"result": 5}',
    "odd": b'{"result": [[{"document": {"contents": 5}}]]}',
}  # fmt: skip


class Faulty(BaseHTTPRequestHandler):
    """Answers as the query wishes."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        passages = [
            {"document": {"contents": f'"T{n}"\nabout {body["queries"][0]}'}, "score": 1.0} for n in range(9)
        ]
        self.answer(body["queries"][0], {"result": [passages[: body["topk"]]]})

    def answer(self, wish: str, good: dict) -> None:
        status = next((int(code) for code in ("500", "503", "404", "302") if f"status{code}" in wish), 200)
        body = next((b for word, b in BODIES.items() if word in wish), json.dumps(good).encode())
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if "cutoff" in wish else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Faulty) as found:
        found.daemon_threads, found.block_on_close = True, False
        found.seen = []
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        found.url = f"http://127.0.0.1:{found.server_port}"
        yield found
        found.shutdown()


def test_a_retrieval_server_is_asked_in_search_r1s_form(server):
    assert (
        search_passages(RetrievalServer(server.url), "rivers", 2)
        == '[1] "T0" about rivers\n[2] "T1" about rivers'
    )
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
