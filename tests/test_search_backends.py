"""Search through servers: a real one in this process, with every fault a server has, and recordings of it."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentkit.runs import read_jsonl
from agentkit.tools import Recording, RetrievalServer, WebSearch, search_passages
from agentkit.tools import search as search_tool

BODIES = {
    "notjson": b"<html>", "nothing": b"", "null": b"null", "list": b"[1]", "empty": b"{}", "wrong": b'{"result": [[1, 2]]}',
    "deep": b"[" * 200_000, "badbytes": b'{"result": "\xff"}', "number": b'{"result": 5, "web": 5}',
    "odd": b'{"result": [[{"document": {"contents": 5}}]]}',
}  # fmt: skip


class Faulty(BaseHTTPRequestHandler):
    """Answers as the query, or the path, wishes."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        passages = [
            {"document": {"contents": f'"T{n}"\nabout {body["queries"][0]}'}, "score": 1.0} for n in range(9)
        ]
        self.answer(body["queries"][0], {"result": [passages[: body["topk"]]]})

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers), None))
        page = {
            "title": "A <strong>page</strong>",
            "url": "https://x.org",
            "description": "says &lt;b&gt;\nthis",
        }
        self.answer(self.path, {"web": {"results": [page] * 3}})

    def answer(self, wish: str, good: dict) -> None:
        status = next((int(code) for code in ("500", "503", "404", "302") if f"status{code}" in wish), 200)
        if "busyonce" in wish and len(self.server.seen) == 1:
            status = 503
        body = next((b for word, b in BODIES.items() if word in wish), json.dumps(good).encode())
        if "hang" in wish:
            self.server.release.wait(30)
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()
            for _ in range(300 if "drip" in wish else 0):
                self.wfile.write(b" ")
                time.sleep(0.1)
            for _ in range(2_000 if "huge" in wish else 0):
                self.wfile.write(bytes(2**20))
            self.wfile.write(body[: len(body) // 2] if "cutoff" in wish else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Faulty) as found:
        found.daemon_threads, found.block_on_close = True, False
        found.seen, found.release = [], threading.Event()
        threading.Thread(target=found.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{found.server_port}"
        yield found
        found.release.set()
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
    ("list", "form"), ("empty", "form"), ("wrong", "form"), ("number", "form"), ("odd", "form"), ("huge", "larger than"),
    ("hang", "in time"), ("drip", "in time"),
]  # fmt: skip


@pytest.mark.parametrize(("wish", "says"), FAULTS, ids=[wish for wish, _ in FAULTS])
def test_a_servers_fault_is_a_sentence_in_time(server, wish, says):
    limit_s = 1.5 if says == "in time" else 8.0
    start = time.monotonic()
    with pytest.raises(ValueError, match=says):
        search_passages(RetrievalServer(server.url, timeout_s=limit_s), wish)
    assert time.monotonic() - start < limit_s + 5


def test_a_server_that_is_busy_once_is_asked_again(server):
    assert RetrievalServer(server.url).search("busyonce", 1) == ['"T0" about busyonce']
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "http://no-such-host.invalid", "nonsense", "http://[", "ftp://127.0.0.1"]
)
def test_a_server_that_is_not_there_is_a_sentence(url, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(ValueError, match="cannot be reached|in time"):
        RetrievalServer(url, timeout_s=3).search("x", 1)


def test_web_search_sends_its_key_and_never_shows_it(server, monkeypatch, caplog):
    key = "key-" + "planted"
    monkeypatch.setenv("BRAVE_API_KEY", key)
    web = WebSearch(f"{server.url}/search", timeout_s=5)
    with caplog.at_level(logging.DEBUG):
        assert web.search("rivers & lakes", 2) == ["A page (https://x.org): says <b> this"] * 2
        shown = [repr(web), str({n: getattr(web, n) for n in vars(web)})]
        for path in ("status500", "notjson", "number", "cutoff"):
            with pytest.raises(ValueError) as error:
                WebSearch(f"{server.url}/{path}", timeout_s=5).search("x", 1)
            shown.append(str(error.value))
    path, headers, _ = server.seen[0]
    assert path.replace("+", "%20") == "/search?q=rivers%20%26%20lakes&count=2"
    assert headers["X-Subscription-Token"] == key
    assert key not in caplog.text and key not in "".join(shown)


def test_web_search_without_a_key_says_what_to_set(monkeypatch):
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)
    with pytest.raises(ValueError, match="set BRAVE_API_KEY"):
        WebSearch()


def test_a_recording_replays_what_was_recorded(server, tmp_path):
    path = tmp_path / "recorded.jsonl"
    recording = Recording(path, RetrievalServer(server.url, timeout_s=5))
    first = recording.search("rivers", 2)
    assert recording.search("rivers", 2) == first and len(server.seen) == 1
    recording.search("rivers", 3)
    with pytest.raises(ValueError, match="status 404"):
        recording.search("status404", 2)
    server.shutdown()
    replay = Recording(path)
    assert replay.search("rivers", 2) == first and len(replay.search("rivers", 3)) == 3
    for unknown in ("status404", "lakes"):  # a failure was not recorded
        with pytest.raises(ValueError, match="the recording holds no answer"):
            replay.search(unknown, 2)
    assert len(read_jsonl(path)) == 2


def test_a_recording_keeps_one_answer_for_all_who_ask_at_once(tmp_path):
    class Changing:
        count = 0

        def search(self, query, top_k):
            type(self).count += 1
            answer = f"{query} {self.count}"
            time.sleep(0.05)
            return [answer]

    recording, found = Recording(tmp_path / "r.jsonl", Changing()), []
    threads = [
        threading.Thread(target=lambda: found.append(tuple(recording.search("q", 1)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert Recording(tmp_path / "r.jsonl").search("q", 1) == list(found[0])


def test_a_recording_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="record one first"):
        Recording(tmp_path / "none.jsonl")


@pytest.mark.parametrize("found", ["no hits", None, [5], [["a"]], {"a": 1}, [None]])
def test_what_is_no_list_of_passages_is_not_recorded(tmp_path, found):
    class Odd:
        def search(self, query, top_k):
            return ["fine"] if query == "good" else found

    recording = Recording(tmp_path / "r.jsonl", Odd())
    recording.search("good", 1)
    with pytest.raises(ValueError, match="not a list of passages"):
        recording.search("bad", 1)
    assert Recording(tmp_path / "r.jsonl").search("good", 1) == ["fine"]


def test_a_recording_that_cannot_be_written_warns_and_answers():
    class Fine:
        def search(self, query, top_k):
            return [query]

    recording = Recording("/proc/self/r.jsonl", Fine())
    with pytest.warns(UserWarning, match="records no more"):
        assert recording.search("q", 1) == ["q"]


@pytest.mark.parametrize("key", ["a key", "schlüssel", "a\nb"])
def test_a_key_that_cannot_be_one_is_refused(monkeypatch, key):
    monkeypatch.setenv("BRAVE_API_KEY", key)
    with pytest.raises(ValueError, match="BRAVE_API_KEY holds characters"):
        WebSearch()


@pytest.mark.parametrize("row", ['{"query": 5}', '{"query": "q", "top_k": 1}', '{"query": "q", "top_k": 1, "passages": "x"}',
                                 '{"query": "q", "top_k": 1, "passages": [null]}'])  # fmt: skip
def test_a_damaged_recording_is_refused(tmp_path, row):
    (tmp_path / "r.jsonl").write_text(row + "\n")
    with pytest.raises(ValueError, match="is no recording"):
        Recording(tmp_path / "r.jsonl")


def test_passages_are_one_line_of_bounded_length():
    assert search_tool._line("a\n<b>x</b>\t y " + "z" * 5_000).startswith("a x y zzz")
    assert len(search_tool._line("z" * 10**6)) == search_tool.MAX_PASSAGE
