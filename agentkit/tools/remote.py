"""Tools that a server offers, as environments of a family: an MCP server's, or an OpenEnv environment's.

    families = {"shop": Family(draft, environment=remote.mcp(["python", "server.py"]))}
    families = {"grid": Family(draft, environment=remote.openenv("http://localhost:8000"))}

Each process connects by itself, when its first environment is made. While a server is away, calls are made
again for ``retry_s``; then they are made once each, and trajectories that need them are not scored. Arguments
are checked by the server. Leaves out MCP's prompts, resources, sampling and pictures, and OpenEnv's
containers and MCP tools.
"""

import json
import math
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

from agentkit.records import RecipeError, ServerAway
from agentkit.tools.runtime import NO_TOOLS, tool

CONNECT_S = 60.0  # for a server to start and to take a connection
PAUSE_S = 0.5  # between two attempts


def mcp(
    server: str | Sequence[Any] | Callable[[], Any],
    *,
    pure: Iterable[str] = (),
    version: str = "",
    stateful: bool = False,
    timeout_s: float = 10.0,
    retry_s: float = 60.0,
) -> Callable[[], object]:
    """The tools of an MCP server, for ``Family(environment=...)``.

    All trajectories of a process share one session, and over stdio one server process: right for a server
    whose answers depend on no earlier call. With ``stateful`` each trajectory has a session of its own, over
    stdio a server process of its own. It is not scored where that session is lost, as its state is.

    Args:
        server: a URL (streamable HTTP), a command and its arguments (stdio; "python" is this Python), or a
            function that gives what ``mcp.Client`` takes, for headers, a folder or environment variables.
        pure: names of tools whose answers may be cached, with ``version`` as for ``@tool``.
        timeout_s: of a call.
        retry_s: how long calls are made again while the server is away.
    """
    return _Mcp(server, frozenset(pure), version, stateful, timeout_s, retry_s)


def openenv(
    url: str, *, name: str = "step", timeout_s: float = 60.0, retry_s: float = 60.0
) -> Callable[[], object]:
    """An OpenEnv environment, for ``Family(environment=...)``: one tool, with its action's arguments.

    Each trajectory has a session of its own, so the server's ``max_concurrent_envs`` must allow them. Of a
    task only ``meta["reset"]`` is sent, as what the server's reset takes. The environment's reward is the sum
    of the server's.

    Args:
        url: of the server.
        name: of the tool.
        timeout_s: of a call.
        retry_s: how long a reset is tried again while the server is away. A session that is lost later, or
            takes longer, leaves its trajectory without a score.
    """
    return _OpenEnv(url, name, timeout_s, retry_s)


class _Server:
    """A server, what is told of its tools, and until when it is waited for."""

    package, stateful = "", True

    def __init__(self, name: str, timeout_s: float, retry_s: float):
        self.name, self.timeout_s, self.retry_s = name, timeout_s, retry_s
        self.until, self.kind = math.inf, None
        if find_spec(self.package) is None:
            raise RecipeError(
                f"{name} needs an extra: pip install -e '.[{self.package}]' -c requirements.lock"
            )

    def __call__(self) -> object:
        """An environment, of a class with the tools that the server lists when the first one is made."""
        if self.kind is None:
            self.until = 0.0  # it is asked once: a lab is opened now or not at all
            self.kind = self.listed()
        return self.kind()

    def tool(self, method: Callable, name: str, about: str, schema: Mapping, **declared: Any) -> Callable:
        """A method as a tool: with what the runtime and the chat template read off one."""
        function = {"name": name, "description": about, "parameters": schema}
        method.json_schema = {"type": "function", "function": function}
        method.__name__, method.__qualname__ = name, f"{self.name}.{name}"
        return tool(timeout_s=self.timeout_s + self.retry_s + CONNECT_S, **declared)(method)


class _Session:
    """One session with a server, opened when it is asked for and again once it is lost."""

    def __init__(self, server: _Server):
        self.server, self.client, self.used = server, None, False
        self.open, self.lock = ExitStack(), threading.Lock()
        weakref.finalize(self, threading.Thread(target=self.open.close, daemon=True).start).atexit = False

    def ask(self, work: Callable[[Any], Any]) -> Any:
        """What ``work`` gives with a client, tried again while the server is away.

        A stateful session that was used and is lost is not opened again. Raises ServerAway, and ValueError
        with what the server says is wrong.
        """
        server = self.server
        while True:
            client = None
            try:
                with self.lock:
                    if self.client is None and self.used and server.stateful:
                        raise ConnectionError("its session was lost")
                    if self.client is None:
                        self.client = self.open.enter_context(server.connected())
                    client = self.client
                value = work(client)
                server.until, self.used = math.inf, True
                return value
            except ValueError:
                raise
            except Exception as error:
                with self.lock, suppress(Exception):
                    if client is self.client:  # and not one that another call has opened since
                        self.client = None
                        self.open.close()
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                why, now = str(error) or type(error).__name__, time.monotonic()
                server.until = min(server.until, now + server.retry_s)
                if now >= server.until or (self.used and server.stateful):
                    raise ServerAway(
                        f"{server.name} is away ({why:.200}): start it, then run this again"
                    ) from None
            time.sleep(PAUSE_S)


# ---- MCP
class _Mcp(_Server):
    package = "mcp"

    def __init__(self, target: Any, pure: frozenset[str], version: str, stateful: bool, *limits: float):
        self.words = [target] if isinstance(target, str) or callable(target) else [*map(str, target)]
        super().__init__(f"the MCP server {' '.join(map(str, self.words))}", *limits)
        self.target, self.pure, self.version, self.stateful = target, pure, version, stateful
        self.shared = _Session(self)

    @contextmanager
    def connected(self) -> Iterator[Callable[..., Any]]:
        """What calls a method of a client, which runs in an event loop and a thread of its own."""
        from anyio.from_thread import start_blocking_portal
        from mcp import Client, StdioServerParameters, stdio_client

        given = self.target() if callable(self.target) else self.target
        if not callable(self.target) and not isinstance(self.target, str):
            command, *arguments = self.words
            command = sys.executable if command == "python" else command
            started = StdioServerParameters(command=command, args=arguments)
            given = stdio_client(started, errlog=sys.__stderr__)
        client = Client(given, read_timeout_seconds=CONNECT_S)
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
            yield lambda method, /, **arguments: portal.call(partial(getattr(client, method), **arguments))

    def listed(self) -> type:
        """The class of its environments."""
        methods = {each.name: self._method(each) for each in self.shared.ask(_tools)}
        for name in [name for name in methods if name in NO_TOOLS or name.startswith("_")]:
            del methods[name]  # of an environment, a method of this name is something else
            warnings.warn(f"{self.name}: its tool {name!a:.60} is left out, for its name", stacklevel=2)
        return type("MCP", (_McpEnvironment,), {**methods, "_server": self, "reset": _McpEnvironment.reset})

    def _method(self, offered: Any) -> Callable:
        name, schema = offered.name, offered.input_schema

        def method(self: Any, /, **arguments: Any) -> str:
            return self._session.ask(partial(self._server.call, name, arguments))

        declared = {"pure": name in self.pure, "version": f"{self.version} {json.dumps(schema)}"}
        return self.tool(method, name, offered.description or "", schema, **declared)

    def call(self, name: str, arguments: dict[str, Any], ask: Callable[..., Any]) -> str:
        """What a call gives. Raises ValueError with what the server or the tool says is wrong."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST

        try:
            result = ask("call_tool", name=name, arguments=arguments, read_timeout_seconds=self.timeout_s)
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, INVALID_REQUEST, INTERNAL_ERROR):
                raise  # the connection, the session or the HTTP server
            raise ValueError(error.message) from None
        parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
        if result.is_error:
            raise ValueError("\n".join(parts))
        return "\n".join(parts) or json.dumps(result.structured_content, ensure_ascii=False)


def _tools(ask: Callable[..., Any]) -> list:
    """All tools of an MCP server, page by page."""
    page = ask("list_tools")
    found = [*page.tools]
    while page.next_cursor:
        page = ask("list_tools", cursor=page.next_cursor)
        found += page.tools
    return found


class _McpEnvironment:
    def __init__(self) -> None:
        self._session = self._server.shared

    def reset(self, **row: Any) -> None:
        """A session of its own, where each trajectory has one; that of the trajectory before ends."""
        if self._server.stateful:
            self._session = _Session(self._server)


# ---- OpenEnv
class _OpenEnv(_Server):
    package = "openenv"

    def __init__(self, url: str, tool_name: str, *limits: float):
        super().__init__(f"the OpenEnv server {url}", *limits)
        self.url, self.tool_name = url.rstrip("/"), tool_name

    def connected(self) -> Any:
        """A client that speaks in plain dictionaries, to be entered."""
        from openenv.core.env_client import EnvClient

        class Client(EnvClient):
            _step_payload = _parse_result = _parse_state = staticmethod(dict)

        return Client(self.url, connect_timeout_s=CONNECT_S, message_timeout_s=self.timeout_s)

    def listed(self) -> type:
        """The class of its environments: its tool has the arguments of the server's actions."""
        import httpx

        url = f"{self.url}/schema"
        schema = _Session(self).ask(lambda client: httpx.get(url).raise_for_status().json()["action"])
        schema["properties"].pop("metadata", None)

        def step(self: Any, /, **action: Any) -> str:
            return self._step(action)

        made = self.tool(step, self.tool_name, schema.get("description") or "Take one step.", schema)
        return type("OpenEnv", (_OpenEnvEnvironment,), {"_server": self, self.tool_name: made})


class _OpenEnvEnvironment:
    def __init__(self) -> None:
        self._session, self._reward, self._done = _Session(self._server), 0.0, False

    @tool(timeout_s=600.0)  # its session's own limits are shorter
    def reset(self, reset: Mapping[str, Any] | None = None, **row: Any) -> str:
        """A new session; its first observation stands behind the question."""
        self._session, self._reward, self._done = _Session(self._server), 0.0, False
        return _shown(self._ask(lambda client: client.reset(**(reset or {}))))

    def _step(self, action: dict[str, Any]) -> str:
        if self._done:
            raise ValueError("the environment has ended: answer now")
        reply = self._ask(lambda client: client.step(action))
        self._done = reply["done"]
        self._reward += reply["reward"] or 0.0
        return _shown(reply)

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        def worded(client: Any) -> Any:
            try:
                return work(client)
            except RuntimeError as error:  # what the server says
                raise (OSError if "CAPACITY_REACHED" in str(error) else ValueError)(str(error)) from None

        return self._session.ask(worded)

    def get_reward(self) -> float:
        """The sum of the rewards it has given."""
        return float(self._reward)

    def state(self) -> dict[str, Any]:
        """The server's state of this session."""
        return self._ask(lambda client: client.state())


def _shown(reply: dict[str, Any]) -> str:
    """An observation as text: its only field, or JSON."""
    fields = {name: value for name, value in reply["observation"].items() if name != "metadata"}
    only = next(iter(fields.values())) if len(fields) == 1 else fields
    return only if isinstance(only, str) else json.dumps(only, ensure_ascii=False)
