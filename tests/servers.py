"""A server on this machine for tests: each reply is a function of what was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """A server at work.

    Attributes:
        reply: given the body of a POST (None of a GET), a status and what to send: bytes or a JSON value, or
            None where the line is to go dead in mid-answer.
        seen: path, headers and body of each request.
    """

    url: str
    reply: Callable[[Any], tuple[int, Any]]
    seen: list[tuple[str, Any, Any]] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        """What was posted."""
        return [body for _, _, body in self.seen if body is not None]


@contextmanager
def serving(reply: Callable[[Any], tuple[int, Any]]) -> Iterator[Served]:
    """Answer with ``reply`` while the body runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            if len(sent := self.rfile.read(length)) < length:  # given up by the client before it was sent
                self.close_connection = True
                return
            self.answer(json.loads(sent or b"null"))

        def answer(self, body: Any) -> None:
            served.seen.append((self.path, self.headers, body))
            status, content = served.reply(body)
            data = content if isinstance(content, bytes | None) else json.dumps(content).encode()
            self.close_connection |= data is None
            with suppress(OSError):  # the client may have left
                self.send_response(status)
                self.send_header("Location", f"{served.url}/elsewhere")  # heeded where the status says so
                self.send_header("Content-Length", str(1000 if data is None else len(data)))
                self.end_headers()
                self.wfile.write(b'{"choices' if data is None else data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with Many(("127.0.0.1", 0), Handler) as server:
        served = Served(f"http://127.0.0.1:{server.server_port}", reply)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield served
        server.shutdown()


class Many(ThreadingHTTPServer):
    """Many connect at once, and none is waited for in the end."""

    request_queue_size, daemon_threads, block_on_close = 64, True, False
