"""The server policy: turns sampled by vLLM servers over their completions, token ids in and out.

Several replicas of one model share the load: a request goes to the one with the least in flight, with some
preference for the one that served the trajectory's last turn and still has its keys and values. A replica
that fails or falls silent is left out and its requests go to another; since a request carries its own seed,
the sample stays the same. A replica that comes back is used again after the next ``sync``, which brings it
the weights it missed. Leaves out starting the servers (serve, server_processes).
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
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from peft import PeftModel

from agentkit.policies.engine_weights import full_weights, save_lora, save_weights
from agentkit.policies.process_group import on_main_process, rank
from agentkit.policies.shards import sharded
from agentkit.rollouts.policy import EngineError, Policy, Request, Sample, seed_number
from agentkit.rollouts.template_probe import end_of_turn_ids

API_KEY = "AGENTKIT_API_KEY"  # the environment variable; a key belongs into no recipe
LOYALTY = 4  # requests more in flight that a replica may have and still get its trajectory's next turn
CONNECT_S = 10.0
IDLE_S = 1.0  # that a connection is kept: uvicorn closes one after 5 s, perhaps as a request is on its way
BACK_S = 60.0  # that a replica left out has to take the new weights
NONE_LEFT = "no server is left to sample from"


class _ReplicaError(Exception):
    """This replica cannot serve; another may."""


@dataclass(slots=True, eq=False)
class _Replica:
    url: str
    model: str = ""  # what it calls the model it serves
    adapter: str = ""  # of this policy that it holds
    reads: int | None = None  # tokens of prompt and completion, where it says so
    why: str = ""  # it is left out for this reason; "" while it is used
    replied: float = -math.inf  # when it last did, by the monotonic clock
    running: dict[asyncio.Task, float] = field(default_factory=dict)  # and when each began


class ServerPolicy(Policy):
    """Samples from vLLM servers at ``urls``, replicas of one model.

    With ``lora`` a PEFT model's adapter is handed over, instead of all weights with the adapter folded in.
    vLLM tells by an adapter's name which keys and values are whose.
    One turn may take ``timeout_s``, waiting in the server included; a replica that says nothing for
    ``silent_s`` to more than LOYALTY requests, while another does, is left out. Raises EngineError for a
    replica that does not answer or serves no model.
    """

    shares_weights = False

    def __init__(
        self,
        urls: Sequence[str],
        tokenizer: Any,
        name: str = "policy",
        *,
        lora: bool = False,
        timeout_s: float = 600.0,
        silent_s: float = 300.0,
    ):
        if not urls:
            raise EngineError(
                "engine: server needs server_urls, as in: server_urls: "
                "http://localhost:8000,http://localhost:8001"
            )
        self.tokenizer, self.name, self._lora, self._silent_s = tokenizer, name, lora, silent_s
        self._adapter = ""  # that samples; none before the first is handed over, or where they are folded in
        self.ends = sorted(end_of_turn_ids(tokenizer))
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
        """Have every replica that answers load the model's weights, or EngineError. Keys and values of others
        are dropped, or go by another adapter's name.

        They go through a folder in the temporary directory (TMPDIR), which the servers must be able to read.
        Of several processes that train together the first hands them over.
        """
        if rank() > 0 and sharded(model) and not self._takes_lora(model):
            for _ in full_weights(model):  # the first gathers them
                pass
        self._adapter, states = on_main_process(lambda: self._hand_over(model))
        for replica, (name, adapter, why) in zip(self._replicas, states, strict=True):
            replica.model, replica.adapter, replica.why = name, adapter, why

    def _takes_lora(self, model: Any) -> bool:
        return self._lora and isinstance(model, PeftModel)

    def _hand_over(self, model: Any) -> tuple[str, list[tuple[str, str, str]]]:
        """The name of the adapter handed over, and for each replica what it serves and why it is left out."""
        self._updates += 1
        folder = self._folder / f"{self._stem}{self._updates}"
        lora = self._takes_lora(model)
        try:
            if lora:
                save_lora(model, folder)
            else:
                save_weights(model, folder)
            self._call(self._deliver(folder, lora))
        finally:  # a server may read an adapter that it holds again
            gone = self._updates - 1 if lora else self._updates
            shutil.rmtree(self._folder / f"{self._stem}{gone}", ignore_errors=True)
        return self._adapter, [(r.model, r.adapter, r.why) for r in self._replicas]

    def close(self) -> None:
        """Close all connections. The servers run on."""
        if self._thread.is_alive():
            self._call(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- in the policy's own event loop
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
            except (_ReplicaError, EngineError) as error:
                raise EngineError(
                    f"the server {replica.url} in server_urls: {error}. Start it (agentkit serve)"
                ) from None
            except (ValueError, LookupError, TypeError):
                raise EngineError(
                    f"the server {replica.url} in server_urls does not say which model it serves, as an "
                    "OpenAI-compatible server does at /v1/models. Start it (agentkit serve)"
                ) from None
        self.max_length = min((r.reads for r in self._replicas if r.reads), default=None)
        served = sorted(
            {replica.model.partition("#")[0] for replica in self._replicas}
        )  # the nth start of one
        if len(served) > 1:
            raise EngineError(
                f"the servers in server_urls serve different models ({', '.join(served)}): let all serve one"
            )

    async def _served(self, replica: _Replica) -> list[str]:
        """Names of what a replica serves, the model before its adapters."""
        models = (await self._ask(replica, "GET", "/v1/models", timeout=CONNECT_S)).json()["data"]
        names = [str(model["id"]) for model in models]
        reads = models[0].get("max_model_len")  # vLLM's own field
        replica.reads = reads if isinstance(reads, int) else None
        return names

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
        if reply.status_code == 404 and path == "/v1/completions":
            raise _ReplicaError("it does not know the model any more, as one that was started again")
        if reply.status_code >= 400:
            raise EngineError(
                f"{replica.url}{path} refused a request with status {reply.status_code}: {reply.text[:300]}"
            )
        replica.replied = time.monotonic()
        return reply

    async def _sample(self, request: Request) -> Sample:
        while True:
            replica = self._choose(request.trajectory)
            task = asyncio.create_task(self._turn(replica, request))
            replica.running[task] = time.monotonic()
            try:
                while not (await asyncio.wait({task}, timeout=self._silent_s / 10))[0]:
                    self._leave_out_silent(replica)
                return await task
            except _ReplicaError as error:
                self._leave_out(replica, str(error))
            except asyncio.CancelledError:  # by _leave_out, or because nobody waits for this turn any more
                if asyncio.current_task().cancelling():
                    raise
            finally:
                task.cancel()
                del replica.running[task]

    def _choose(self, trajectory: int) -> _Replica:
        used = [replica for replica in self._replicas if not self._cannot(replica)]
        if not used:
            reasons = "; ".join(f"{replica.url}: {self._cannot(replica)}" for replica in self._replicas)
            raise EngineError(f"{NONE_LEFT} ({reasons}). What was being sampled is lost and recorded nowhere")
        last = self._last.get(trajectory)
        chosen = min(used, key=lambda replica: len(replica.running) - LOYALTY * (replica is last))
        self._last[trajectory] = chosen
        return chosen

    def _cannot(self, replica: _Replica) -> str:
        """Why a replica does not sample for this policy; "" where it does."""
        if replica.why or self._adapter in ("", replica.adapter):
            return replica.why
        return f"it was not handed {self._adapter}, or holds it no longer"

    def _leave_out_silent(self, replica: _Replica) -> None:
        """Where more wait for it than a few long turns."""
        since = [max(began, replica.replied) for began in replica.running.values()]
        silent = [heard for heard in since if time.monotonic() - heard > self._silent_s]
        replied = max((other.replied for other in self._replicas if not other.why), default=-math.inf)
        if len(silent) > LOYALTY and replied > min(silent):
            quiet_s = time.monotonic() - min(silent)
            self._leave_out(replica, f"it said nothing for {quiet_s:.0f} s, while another did")

    def _leave_out(self, replica: _Replica, why: str) -> None:
        if replica.why:
            return
        replica.why = why
        left = sum(not other.why for other in self._replicas)
        warnings.warn(
            f"the server {replica.url} is left out: {why}. {left} of {len(self._replicas)} are left.",
            stacklevel=2,
        )
        for task in replica.running:
            task.cancel()

    async def _turn(self, replica: _Replica, request: Request) -> Sample:
        body = {
            "model": self._adapter or replica.model,
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
        reply = await self._ask(replica, "POST", "/v1/completions", json=body)
        return _sample(reply, request, replica.url)

    async def _worker(self, replica: _Replica, method: str, *arguments: str) -> httpx.Response:
        body = {"method": method, "args": arguments}
        return await self._ask(replica, "POST", "/collective_rpc", json=body)

    async def _deliver(self, folder: Path, lora: bool) -> None:
        """New weights for every replica, also for one left out that answers again."""

        async def deliver(replica: _Replica) -> None:
            try:
                async with asyncio.timeout(BACK_S if replica.why else None):
                    await self._load(replica, folder, lora)
            except (_ReplicaError, TimeoutError) as error:
                self._leave_out(replica, str(error))
            else:
                replica.why = ""

        await asyncio.gather(*map(deliver, self._replicas))
        self._adapter = folder.name if lora else ""
        self._choose(-1)  # one at least

    async def _load(self, replica: _Replica, folder: Path, lora: bool) -> None:
        replica.model, *adapters = await self._served(replica)
        for old in adapters:
            if old.startswith(self._stem):
                await self._ask(replica, "POST", "/v1/unload_lora_adapter", json={"lora_name": old})
        replica.adapter = ""
        if lora:
            adapter = {"lora_name": folder.name, "lora_path": str(folder)}
            try:
                await self._ask(replica, "POST", "/v1/load_lora_adapter", json=adapter)
            except EngineError as error:
                raise EngineError(
                    f"{error}. Start it for adapters: agentkit serve --lora-rank (the lora_r)"
                ) from None
            replica.adapter = folder.name
            return  # a name tells its own keys and values, and a reset is refused while others sample
        await self._worker(replica, "agentkit_take_folder", str(folder))
        reply = await self._ask(replica, "POST", "/reset_prefix_cache")
        if reply.json().get("success") is not True:
            raise EngineError(
                f"{replica.url} kept keys and values of the old weights: the run must stop here"
            )


def _sample(reply: httpx.Response, request: Request, url: str) -> Sample:
    """The turn in a server's reply, checked: what a server says is not trusted to be whole."""
    try:
        choice = reply.json()["choices"][0]
        reason, ids, logprobs = (
            choice["finish_reason"],
            choice["token_ids"],
            choice["logprobs"]["token_logprobs"],
        )
    except (ValueError, KeyError, IndexError, TypeError):
        raise EngineError(
            f"{url} returned no token ids with log-probabilities: it must be vLLM "
            "0.32 or newer, as agentkit serve starts it"
        ) from None
    if reason not in ("stop", "length"):  # abort: the server is shutting down
        raise _ReplicaError(f"it ended a request for the reason {reason!r}")
    sound = (
        isinstance(ids, list)
        and isinstance(logprobs, list)
        and len(ids) == len(logprobs) <= request.max_new_tokens
        and all(type(i) is int for i in ids)
        and all(type(x) is float and math.isfinite(x) for x in logprobs)
    )
    if not sound:
        raise EngineError(
            f"{url} returned {str(ids)[:80]} with log-probabilities {str(logprobs)[:80]}: not one a token"
        )
    return Sample(ids, logprobs)
