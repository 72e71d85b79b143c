"""The server policy: turns sampled by vLLM servers over their completions, token ids in and out.

Several replicas of one model share the load: a request goes to the one with the least in flight, with some
preference for the one that served the trajectory's last turn and still has its keys and values. Where one
fails, its requests go to the others, or are tried again for a minute; since a request carries its own seed,
the sample stays the same. Only adapters are handed over. Leaves out starting the servers (serve).
"""

import asyncio
import math
import os
import shutil
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from peft import PeftModel

from agentkit.policies.engine_weights import save_lora
from agentkit.policies.process_group import on_main_process
from agentkit.rollouts.policy import EngineError, Policy, Request, Sample, seed_number
from agentkit.rollouts.template_probe import end_of_turn_ids

API_KEY = "AGENTKIT_API_KEY"  # the environment variable; a key belongs into no recipe
LOYALTY = 4  # requests more in flight that a replica may have and still get its trajectory's next turn
CONNECT_S = 10.0
IDLE_S = 1.0  # that a connection is kept: uvicorn closes one after 5 s, perhaps as a request is on its way
RETRY_S = 60.0  # that a call is tried again, before the run stops
PAUSE_S = 1.0  # between two tries of one call
_COMPLETIONS = "/v1/completions"
T = TypeVar("T")


class _ReplicaError(Exception):
    """This replica cannot serve now; another may, or itself in a while."""


@dataclass(slots=True, eq=False)
class _Replica:
    url: str
    model: str = ""  # what it calls the model it serves
    reads: int | None = None  # tokens of prompt and completion, where it says so
    running: int = 0  # requests in flight
    why: str = ""  # it failed last time, and others are asked first; "" while it works


class ServerPolicy(Policy):
    """Samples from vLLM servers at ``urls``, replicas of one model.

    A PEFT model's adapter is handed over; any other model must be the one that they serve, which the sync
    guard sees. One turn may take ``timeout_s``, waiting in the server included. Raises EngineError for a
    replica that does not answer or serves no model.
    """

    shares_weights = False

    def __init__(
        self, urls: Sequence[str], tokenizer: Any, name: str = "policy", *, timeout_s: float = 600.0
    ):
        self.tokenizer, self.name = tokenizer, name
        self.ends = sorted(end_of_turn_ids(tokenizer))
        self._adapter: Path | None = None  # the folder of the one that samples, whose name vLLM tells it by
        self._replicas = [_Replica(url.rstrip("/").removesuffix("/v1")) for url in dict.fromkeys(urls)]
        self._last: dict[int, _Replica] = {}  # by trajectory
        self._updates = 0
        self._stem = f"weights-{uuid.uuid4().hex[:8]}-"  # of its adapters' names, no other's
        self._folder = Path(tempfile.mkdtemp(prefix="agentkit-server-"))
        key = os.environ.get(API_KEY)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            limits=httpx.Limits(keepalive_expiry=IDLE_S),  # as many as there are requests
            trust_env=False,  # no proxy between an engine and its trainer
        )
        self._loop = asyncio.new_event_loop()  # one for all rollouts: connections stay open between them
        self._thread = threading.Thread(target=self._loop.run_forever, name="server-policy", daemon=True)
        self._thread.start()
        try:
            self._call(self._meet())
        except BaseException:
            self.close()
            raise

    def _call(self, work: Coroutine) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def sample(self, request: Request) -> Sample:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._sample(request), self._loop))

    def end(self, trajectory: int) -> None:
        self._last.pop(trajectory, None)

    def sync(self, model: Any) -> None:
        """Have every replica load the model's adapter, or EngineError; keys and values go by its name.

        It goes through a folder in the temporary directory (TMPDIR), which the servers must be able to read.
        Of several processes that train together the first hands it over.
        """
        adapted = isinstance(model, PeftModel)
        self._adapter = on_main_process(lambda: self._hand_over(model)) if adapted else None

    def _hand_over(self, model: PeftModel) -> Path:
        self._updates += 1
        folder, old = (self._folder / f"{self._stem}{self._updates - i}" for i in (0, 1))
        save_lora(model, folder)
        self._call(self._to_all(folder))
        shutil.rmtree(old, ignore_errors=True)
        return folder

    def close(self) -> None:
        """Close all connections. The servers run on."""
        if self._thread.is_alive():
            self._call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- in the thread of the connections
    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    async def _meet(self) -> None:
        for replica in self._replicas:
            try:
                replica.model = (await self._served(replica))[0]
            except (_ReplicaError, EngineError, ValueError, LookupError, TypeError) as error:
                raise EngineError(
                    f"the server {replica.url} in server_urls does not say which model it serves ({error}). "
                    "Start it (agentkit serve)"
                ) from None
        self.max_length = min((r.reads for r in self._replicas if r.reads), default=None)
        served = sorted({replica.model for replica in self._replicas})
        if len(served) > 1:
            raise EngineError(
                f"the servers in server_urls serve different models ({', '.join(served)}): let all serve one"
            )

    async def _served(self, replica: _Replica) -> list[str]:
        """Names of what a replica serves, the model before its adapters."""
        models = (await self._ask(replica, "GET", "/v1/models", timeout=CONNECT_S)).json()["data"]
        reads = models[0].get("max_model_len")  # vLLM's own field
        replica.reads = reads if isinstance(reads, int) else None
        return [str(model["id"]) for model in models]

    async def _ask(self, replica: _Replica, method: str, path: str, **options: Any) -> httpx.Response:
        """One exchange with a replica.

        Raises:
            _ReplicaError: it cannot serve now.
            EngineError: it will not do what was asked, and no other would.
        """
        try:
            reply = await self._client.request(method, replica.url + path, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _ReplicaError(f"it does not answer ({type(error).__name__}: {str(error)[:120]})") from None
        if reply.status_code in (401, 403):
            raise EngineError(f"{replica.url} refused the API key: set the environment variable {API_KEY}")
        if reply.status_code >= 500:
            raise _ReplicaError(f"it failed with status {reply.status_code}: {reply.text[:200]}")
        if reply.status_code >= 400 and not (reply.status_code == 404 and path == _COMPLETIONS):
            raise EngineError(
                f"{replica.url}{path} refused a request with status {reply.status_code}: {reply.text[:300]}"
            )
        return reply

    async def _sample(self, request: Request) -> Sample:
        return await self._persist(
            lambda: self._choose(request.trajectory), lambda replica: self._turn(replica, request)
        )

    async def _persist(
        self, choose: Callable[[], _Replica], work: Callable[[_Replica], Coroutine[Any, Any, T]]
    ) -> T:
        """What ``work`` gives with a replica, tried again for a minute where that one fails."""
        until = time.monotonic() + RETRY_S
        while True:
            replica = choose()
            replica.running += 1
            try:
                result = await work(replica)
                replica.why = ""
                return result
            except _ReplicaError as error:
                self._failed(replica, error, until)
            finally:
                replica.running -= 1
            await asyncio.sleep(PAUSE_S if choose().why else 0)

    def _choose(self, trajectory: int) -> _Replica:
        last = self._last.get(trajectory)
        order = lambda replica: (bool(replica.why), replica.running - LOYALTY * (replica is last))  # noqa: E731
        self._last[trajectory] = chosen = min(self._replicas, key=order)
        return chosen

    def _failed(self, replica: _Replica, error: Exception, until: float) -> None:
        """Note and tell that a replica failed; raise EngineError where none has served a call in its time."""
        if time.monotonic() > until:
            raise EngineError(
                f"the server {replica.url} does not serve any more: {error}. It was asked for {RETRY_S:.0f} s"
                ": start it again (agentkit serve), and run this again to go on. What was being sampled is "
                "lost and recorded nowhere"
            )
        if not replica.why:
            warnings.warn(f"the server {replica.url} failed: {error}; it is asked again", stacklevel=2)
        replica.why = str(error)

    async def _turn(self, replica: _Replica, request: Request) -> Sample:
        body = {
            "model": self._adapter.name if self._adapter else replica.model,
            "prompt": request.ids,
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": 1.0,
            "top_k": 0,  # all: nothing from the served model's own generation settings
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "seed": seed_number(request.seed),
            "logprobs": 0,  # the sampled token's alone
            "stop_token_ids": self.ends,
            "ignore_eos": True,  # these end a turn and no others, as in all engines
            "skip_special_tokens": False,
            "return_token_ids": True,
        }
        reply = await self._ask(replica, "POST", _COMPLETIONS, json=body)
        if reply.status_code == 404:  # it was started again, and holds no adapter
            if self._adapter:
                await self._load(replica, self._adapter)
            raise _ReplicaError("it does not know the model any more, as one that was started again")
        return _sample(reply, request, replica.url)

    async def _to_all(self, folder: Path) -> None:
        async def deliver(replica: _Replica) -> None:
            await self._persist(lambda: replica, partial(self._load, folder=folder))

        await asyncio.gather(*map(deliver, self._replicas))

    async def _load(self, replica: _Replica, folder: Path) -> None:
        """Have a replica load an adapter, in place of those that this policy handed it before."""
        replica.model, *adapters = await self._served(replica)
        for old in adapters:
            if old.startswith(self._stem):
                await self._ask(replica, "POST", "/v1/unload_lora_adapter", json={"lora_name": old})
        adapter = {"lora_name": folder.name, "lora_path": str(folder)}
        try:
            await self._ask(replica, "POST", "/v1/load_lora_adapter", json=adapter)
        except EngineError as error:
            raise EngineError(
                f"{error}. Start it for adapters: agentkit serve --lora-rank (the lora_r)"
            ) from None


def _sample(reply: httpx.Response, request: Request, url: str) -> Sample:
    """The turn in a server's reply, checked: what a server says is not trusted to be whole."""
    try:
        choice = reply.json()["choices"][0]
        reason, ids = choice["finish_reason"], choice["token_ids"]
        logprobs = choice["logprobs"]["token_logprobs"]
        sound = (
            len(ids) == len(logprobs) <= request.max_new_tokens
            and all(type(i) is int for i in ids)
            and all(type(x) is float and math.isfinite(x) for x in logprobs)
        )
    except (ValueError, KeyError, IndexError, TypeError):
        sound = False
    if not sound:
        raise EngineError(
            f"{url} returned no token ids with one log-probability each ({reply.text[:160]}): it must be "
            "vLLM 0.32 or newer, as agentkit serve starts it"
        )
    if reason not in ("stop", "length"):  # abort: the server is shutting down
        raise _ReplicaError(f"it ended a request for the reason {reason!r}")
    return Sample(ids, logprobs)
