"""What tests/gpu/run.sh measures: each figure yields a line for each case. The small agent serves for
exactness, models of real shapes with random weights for memory and speed.

Leaves out choosing figures, and what becomes of their lines (measure.py).
"""

from __future__ import annotations

import copy
import gc
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import engines
import survive
import torch
from benchmarks import peer
from benchmarks.peer import as_batch, logprobs, our_trainer, stock_trainer
from benchmarks.update import _batch
from trl import GRPOTrainer

from agentkit import nano
from agentkit.policies import sync_guard
from agentkit.policies.engine_weights import bare
from agentkit.policies.loading import agent_of, load_agent, make_policy, with_adapter
from agentkit.recipe import Recipe
from agentkit.records import EngineError, StopReason, TrainingError, Trajectory
from agentkit.runs import RunError, read_jsonl, versions
from agentkit.training.adapters import save_adapter
from agentkit.training.loop import GRPO
from agentkit.training.memory import update_peak
from agentkit.training.merge import logprobs as run_logprobs
from agentkit.training.merge import merge
from agentkit.training.sft import fine_tune
from agentkit.training.update_timing import update_seconds

torch.backends.cuda.enable_cudnn_sdp(False)  # as load_agent has it
TESTS = Path(__file__).resolve().parents[1]
CUDA = torch.cuda.is_available()
TRLS_OWN = partial(stock_trainer, kind=GRPOTrainer)
DEVICE = "cuda" if CUDA else "cpu"
HALF = {"precision": "bfloat16"}
SHORT = {"max_turn_tokens": 64, "max_tokens": 128}
GROUP, PROMPT = 8, 1024
ONE_GROUP = Recipe(beta=0.0, group_size=GROUP, prompts_per_step=1, micro_batch=GROUP)
Lines = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Budget:
    """How much to measure."""

    kind: str
    quick: bool
    rehearse: bool

    @property
    def engine(self) -> str:
        return "vllm" if self.kind == "vllm" else "transformers"

    def shape(self, name: str) -> tuple[str, Any]:
        """The name and the configuration of a model: a tiny one in rehearsals."""
        name = "tiny" if self.rehearse else name
        return name, engines.SHAPES[name]

    def of(self, full: Any, quick: Any) -> Any:
        return quick if self.quick or self.rehearse else full


def line(case: str, value: Any, unit: str = "", ok: bool | None = None, **more: Any) -> dict[str, Any]:
    return {"case": case, "value": value, "unit": unit, "ok": ok, "device": DEVICE} | more


def tidy() -> None:
    """Free what a figure held."""
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def memory() -> dict[str, float]:
    """GB at the peak since the last call; nothing without CUDA."""
    if not CUDA:
        return {}
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    tidy()
    torch.cuda.reset_peak_memory_stats()
    return {"allocated_gb": round(allocated / 1e9, 2), "reserved_gb": round(reserved / 1e9, 2)}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start, result = time.perf_counter(), work()
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def within_memory(case: str, unit: str, work: Callable[[], float], **more: Any) -> dict[str, Any]:
    """A line with what ``work`` gives and the memory it took; running out of memory is a finding too."""
    memory()
    try:
        return line(case, round(work(), 4), unit, **memory(), **more)
    except torch.OutOfMemoryError as error:
        return line(case, "out of memory", unit, **more, error=str(error)[:120])


# ---- the machine
def environment(budget: Budget) -> Lines:
    name = torch.cuda.get_device_name() if CUDA else platform.processor() or platform.machine()
    yield line("device", name, gpus=torch.cuda.device_count(), versions=versions())
    if CUDA:
        yield line("memory", round(torch.cuda.mem_get_info()[1] / 1e9, 1), "GB")


# ---- exactness
def exactness(budget: Budget) -> Lines:
    """Log-probabilities and gradients of our update and TRL's, in both precisions, against float32."""
    prompt = budget.of(1024, 64)
    found = {}
    for precision in ("float32", "bfloat16"):
        kinds = {"shared": our_trainer, "plain": stock_trainer} | ({"trl": TRLS_OWN} if CUDA else {})
        for name, kind in kinds.items():
            recipe = ONE_GROUP.but(precision=precision)
            model, tokenizer = load_agent("nano", precision=precision)
            trainer, batch = kind(model, tokenizer, recipe), _batch(tokenizer, DEVICE, prompt)
            _, _, gradient = peer.update(trainer, batch)
            scored = (batch["completion_mask"] * batch["tool_mask"]).bool()
            found[precision, name] = logprobs(trainer, batch)[scored].float(), gradient
    values, gradient = found["float32", "plain"]
    rounding = float((found["bfloat16", "plain"][0] - values).abs().mean())
    for (precision, name), (others, other) in found.items():
        apart = float((others - values).abs().mean())
        limit = (1e-3 if CUDA else 1e-5) if precision == "float32" else 1.5 * rounding
        relative = float((other - gradient).norm() / gradient.norm())
        case = f"{name} {precision} against plain float32"
        yield line(case, apart, "nats", apart <= limit, gradient=round(relative, 6))
    yield from _greedy(budget)


def _greedy(budget: Budget) -> Lines:
    model, tokenizer = load_agent("nano", precision="float32")
    ids = tokenizer("Which is larger, 17 times 23 or 400? " * 8)["input_ids"]
    with make_policy(model, tokenizer, "greedy", Recipe(temperature=0.05)) as policy:
        ours = engines.sampled(policy, [ids], 48, 0.0)[0].ids
    given = torch.tensor([ids], device=model.device)
    theirs = model.generate(given, max_new_tokens=len(ours), do_sample=False)[0]
    same = theirs[len(ids) :].tolist() == list(ours)
    yield line("greedy tokens are generate's, float32", same, ok=same)


# ---- an adapter in half precision
def half(size: float = 0.0) -> tuple[Any, Any]:
    model, tokenizer = load_agent("nano", **HALF)
    return engines.adapter_on(model, size), tokenizer


def survival(budget: Budget) -> Lines:
    """What reaches the engine, computed in float32; and where the effect is more than rounding, what it samples with."""
    recipe = Recipe(engine=budget.engine, temperature=1.0, **HALF)
    for size in (2e-4, 1e-3, 0.05):
        model, tokenizer = half(size)
        with make_policy(model, tokenizer, "grpo", recipe) as policy:
            if budget.kind == "vllm":
                handed = with_adapter(load_agent("nano", **HALF)[0], Path(policy._adapter.lora_path))
                share = engines.kept(handed, model)
                yield line(f"|B| {size:g}: handed to vLLM", share, "share", share >= 0.95)
            seen = engines.shown(policy, model, *budget.of((64, 256), (8, 48)))
        tells = seen.effect > sync_guard.TELLING * seen.mean
        yield line(f"|B| {size:g}: {budget.engine} samples with", seen.share, "share", abs(seen.share - 1) < 0.2 if tells else None,
                   standard_error=seen.error, effect=seen.effect, apart=seen.mean, tokens=seen.tokens)  # fmt: skip
        if budget.kind == "base" and size < 0.01:
            yield from _exported(model, tokenizer, size)


def _exported(model: Any, tokenizer: Any, size: float) -> Lines:
    with tempfile.TemporaryDirectory() as folder:
        agent = load_agent("nano", precision="float32")
        trainer = survive.make_trainer(Path(folder) / "run", agent=agent, steps=1)
        trainer.train()
        run = trainer.run
        run.begin("03_grpo", {"model": "nano", "sft": False})
        save_adapter(model, tokenizer, run.file("adapter"))
        evaluated, _ = agent_of(run, Recipe(**HALF), "grpo")
        rows = [([*range(5, 205)], [0] * 4 + [1] * 196)]
        with model.disable_adapter():
            off = run_logprobs(model.cpu(), rows)
        on, seen = run_logprobs(model, rows) - off, run_logprobs(evaluated.cpu(), rows) - off
        share = float((seen * on).sum() / (on * on).sum())
        yield line(f"|B| {size:g}: notebook 05 evaluates", share, "share", abs(share - 1) < 0.05)
        for dtype in ("bfloat16", "float32"):
            case = f"|B| {size:g}: merged in {dtype}"
            try:
                kept = merge(run, dtype)["surviving"]
                yield line(case, kept, "share", kept >= 0.95)
            except RunError as error:
                yield line(case, "refused", "", dtype == "bfloat16", why=str(error)[:120])


def guard(budget: Budget) -> Lines:
    """Each planted fault must stop the run, and no healthy run be stopped."""
    if budget.kind == "vllm":
        yield from _guard_of_sync(budget)
        return
    for fault in engines.FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            changes = {"beta": 0.0 if fault == "withheld" else 0.02, "steps": 2} | SHORT | HALF
            trainer = survive.make_trainer(Path(folder) / "run", agent=load_agent("nano", **HALF), **changes)
            engines.move(trainer.model, 0.03)
            engines.plant_in_batch(trainer, fault)
            yield line(f"planted: {fault}", *_stopped(trainer.train, True))
    runs = budget.of(10, 2)
    stops = []
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            agent = load_agent("nano", **HALF)
            trainer = survive.make_trainer(Path(folder) / "run", agent=agent, steps=3, seed=seed, **HALF)
            engines.move(trainer.model, 0.01 * seed, seed)
            stops.append(_stopped(trainer.train, False)[0])
    yield line(f"false stops in {runs} healthy runs", stops.count("stopped"), "runs", "stopped" not in stops)


def _guard_of_sync(budget: Budget) -> Lines:
    model, tokenizer = half(0.03)
    with make_policy(model, tokenizer, "grpo", Recipe(engine="vllm", temperature=1.0, **HALF)) as policy:
        sync = partial(sync_guard.sync, policy, model, 1.0)
        for fault in engines.FAULTS:
            with engines.planted_in_sync(policy, model, fault):
                yield line(f"planted: {fault}", *_stopped(sync, True))
        stops = []
        for seed, size in enumerate([0.0, 2e-4, 1e-3, 3e-3, 1e-2, 2e-2, 3e-2, 4e-2, 5e-2, 3e-2]):
            engines.move(model, size, seed)
            stops.append(_stopped(sync, False)[0])
        yield line("false stops in 10 healthy syncs", stops.count("stopped"), "syncs", "stopped" not in stops)


def _stopped(work: Callable[[], Any], wanted: bool) -> tuple[str, str, bool]:
    try:
        work()
    except (EngineError, TrainingError):
        return "stopped", "", wanted
    return "went on", "", not wanted


# ---- real shapes
def update(budget: Budget) -> Lines:
    name, shape = budget.shape("4B")
    model = engines.random_model(shape, device=DEVICE)
    recipe = ONE_GROUP.but(**HALF)
    kinds = {"shared": our_trainer, "plain": partial(our_trainer, share=False)}
    kinds |= {"TRL's own": TRLS_OWN} if CUDA else {}
    for own in budget.of((2048, 8192, 16_384), (48,)):
        rows, prompt = max(1, min(GROUP, 16_384 // own)), budget.of(PROMPT, 64)
        planned = update_peak(copy.deepcopy(shape), recipe, torch.bfloat16, rows, prompt + own, own, DEVICE)
        batch = _random_batch(shape.vocab_size, rows, prompt, own)
        for case, kind in kinds.items():
            trainer = kind(bare(model), _tokenizer(), recipe)
            if not isinstance(trainer, GRPO):
                trainer.model.gradient_checkpointing_enable()  # as its train() does

            def once(trainer: Any = trainer, batch: dict = batch) -> float:
                peer.update(trainer, batch)  # not counted: the first one sets up
                return peer.update(trainer, batch)[0]

            said = f"{name}, own length {own}, {rows} rows, {case}"
            sizes = {"own": own, "rows": rows, "kind": case, "planned_gb": round(planned / 1e9, 2)}
            yield within_memory(said, "s", once, **sizes)
            del trainer, once


def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(nano.DATA)


def _random(vocabulary: int, *lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def _random_batch(vocabulary: int, rows: int, prompt: int, own: int) -> dict[str, torch.Tensor]:
    shared, *completions = _random(vocabulary, prompt, *[own] * rows)
    advantages = [1.0 - 2 * i / max(rows - 1, 1) for i in range(rows)]
    batch = as_batch([shared] * rows, completions, [[1] * own] * rows, advantages)
    return {key: x.to(DEVICE) for key, x in batch.items()}


def decode(budget: Budget) -> Lines:
    """Tokens a second, and for the engine of this process the cache against 2 x layers x heads x size x bytes."""
    name, shape = budget.shape("4B")
    model, prompt, new = engines.random_model(shape, device=DEVICE), budget.of(512, 64), budget.of(128, 16)
    model = engines.adapter_on(model, 1e-3)
    recipe = Recipe(engine=budget.engine, temperature=1.0, max_tokens=1024, engine_memory=0.5, **HALF)
    if budget.engine == "vllm":
        model.cpu()  # the engine has weights of its own
        tidy()
    with make_policy(model, _tokenizer(), "grpo", recipe) as policy:
        for rows in budget.of((16, 64, 128), (4,)):
            prompts = _random(shape.vocab_size, *[prompt] * rows)
            engines.sampled(policy, prompts[:2], 4, 1.0)  # not counted
            memory()
            seconds, samples = timed(partial(engines.sampled, policy, prompts, new, 1.0, keep=True))
            tokens = sum(len(sample.ids) for sample in samples)
            held = _cache_bytes(policy)
            heads, size = shape.num_key_value_heads, shape.head_dim
            needed = 2 * shape.num_hidden_layers * heads * size * 2 * (rows * prompt + tokens)
            more = {"cache_gb": held / 1e9, "cache_over_formula": round(held / needed, 3)} if held else {}
            case = f"{name}, {rows} rows, {budget.engine}"
            yield line(case, tokens / seconds, "tokens/s", **more, **memory())
            engines.end(policy, rows)


def _cache_bytes(policy: Any) -> int:
    layers = getattr(getattr(policy, "_cache", None), "layers", ())
    return sum(x.nbytes for layer in layers for x in (layer.keys, layer.values) if x is not None)


def step(budget: Budget) -> Lines:
    """Whole steps of GRPO on one-turn tasks: sync, rollouts, update and optimiser."""
    name, shape = budget.shape("4B")
    groups, own = budget.of((8, 512), (2, 16))
    changes = {"engine": budget.engine, "steps": 3, "prompts_per_step": groups, "group_size": GROUP}
    changes |= {"micro_batch": GROUP, "max_turns": 1, "max_turn_tokens": own, "max_tokens": own, "beta": 0.0}
    changes |= {"learning_rate": 1e-5, "lora_r": 16, "lora_alpha": 32, "save_every": 0, "val_every": 100}
    changes |= {"deterministic": False} | HALF
    with tempfile.TemporaryDirectory() as folder:
        agent = engines.random_model(shape, device=DEVICE), _tokenizer()
        trainer = survive.make_trainer(Path(folder) / "run", agent=agent, n_tasks=4 * groups, **changes)
        memory()
        trainer.train()
        rows, peak = read_jsonl(trainer.run.file("train", "metrics.jsonl")), memory()
    for row in rows:
        if row["step"]:
            case = f"{name}, step {row['step']}, {groups * GROUP} x {own} tokens, {budget.engine}"
            names = ("rollout_seconds", "update_seconds", "sync_gap", "mismatch")
            told = {name: row.get(name) for name in names}
            yield line(case, row["seconds"], "s", **told, **peak)


def recipes(budget: Budget) -> Lines:
    """Notebooks 01 to 03 of the recipes to begin with; the models must be on this machine."""
    for name in ("smoke", "qwen3-4b"):
        with tempfile.TemporaryDirectory() as folder:
            changes = {"engine": budget.engine, "steps": 3, "n_tasks": 80, "val_every": 3, "val_tasks": 4}
            changes |= {"test_samples": 1, "preflight": "warn"}
            if budget.rehearse:
                tiny = Path(folder, "tiny")
                engines.random_model(engines.SHAPES["tiny"]).save_pretrained(tiny)
                _tokenizer().save_pretrained(tiny)
                changes |= {"prompts_per_step": 2, "group_size": 2, "micro_batch": 2}
                changes |= {"model": str(tiny), "preflight": "off", "max_turns": 2, "max_turn_tokens": 8}
            words = [word for key, value in changes.items() for word in ("-p", f"{key}={value}")]
            run, recipe = Path(folder, "run"), TESTS.parent / "params" / f"{name}.yaml"
            seconds, done = timed(partial(_cli, "run", recipe, "--run", run, "--to", "03", *words))
            case = f"{name}, {budget.engine}"
            if done.returncode:
                yield line(case, done.stderr.strip()[-300:], ok=False)
            else:
                told = json.loads(_cli("doctor", "--run", run).stdout)
                yield line(f"{case}, three steps", seconds, "s", True, run=told)


def _cli(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "agentkit.cli", *map(str, words)]
    return subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)


def sft(budget: Budget) -> Lines:
    name, shape = budget.shape("4B")
    rows, length = budget.of((16, 1536), (4, 64))
    recipe = Recipe(sft_batch=rows, group_size=4, micro_batch=4, **HALF)
    prompt, *completions = _random(min(shape.vocab_size, 1000), length // 2, *[length // 2] * rows)
    shown = [_trajectory(i, prompt, ids) for i, ids in enumerate(completions)]
    model = engines.random_model(shape, device=DEVICE)
    yield within_memory(f"{name}, preflight's timed update, 4 x {length} tokens", "s a trajectory",
                        partial(update_seconds, model, shown[:4], recipe))  # fmt: skip

    def tuned() -> float:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "sft"
            return timed(partial(fine_tune, model, _tokenizer(), shown * 2, recipe, out, max_steps=2))[0]

    yield within_memory(f"{name}, two steps of SFT, {rows} x {length} tokens", "s", tuned)


def _trajectory(i: int, prompt: list[int], completion: list[int]) -> Trajectory:
    ones, logprobs = (1,) * len(completion), (-1.0,) * len(completion)
    tokens = tuple(prompt), tuple(completion), ones, logprobs
    return Trajectory("random", "random", i, 0, *tokens, (), StopReason.ANSWER)
