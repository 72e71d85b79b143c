"""Adapters as training leaves them, real models' shapes with random weights, and faults planted in engines.

Shared by the tests and by tests/gpu/measure.py.
"""

import asyncio
import copy
import shutil
import socket
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3Config

from agentkit.policies import sync_guard
from agentkit.policies.engine_weights import save_lora
from agentkit.records import Task
from agentkit.rollouts.policy import Policy, Request, Sample

FAULTS = ("withheld", "wrong adapter", "temperature", "stale")
SHAPES = {  # Qwen3-4B's as its config.json has it, and one for rehearsals
    "4B": Qwen3Config(
        vocab_size=151_936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=40_960,
    ),
    "tiny": Qwen3Config(
        vocab_size=2048, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, max_position_embeddings=40_960,
    ),
}  # fmt: skip


def random_model(config: Any, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> Any:
    """A model of this shape with random weights."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.config.architectures = [type(model).__name__]  # vLLM asks for it
    return model


def adapter_on(model: Any, size: float, seed: int = 1, rank: int = 16) -> PeftModel:
    """A LoRA adapter all of whose B entries are plus or minus ``size``, as Adam leaves them early."""
    torch.manual_seed(0)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return move(get_peft_model(model, config).eval(), size, seed)


def move(model: PeftModel, size: float, seed: int = 1) -> PeftModel:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            signs = torch.where(torch.rand(parameter.shape, generator=generator) < 0.5, -1.0, 1.0)
            parameter.data = (size * signs).to(parameter)
    return model


# ---- what an engine shows of an adapter
def kept(handed: Any, model: PeftModel) -> float:
    """Share of the adapter's effect e that weights handed on have, 1 - |e' - e|^2 / |e|^2, in float32.

    What half precision rounds in computing is more than a small adapter does, so it is left out; so is what
    another engine's form of the weights beneath changes (``handed`` with an adapter of its own). ``model`` is
    no trainer's, which is wrapped in autocast.
    """
    ids = torch.randint(5, 900, (2, 160), generator=torch.Generator().manual_seed(3))

    @torch.no_grad()
    def scored(model: Any) -> torch.Tensor:
        return torch.log_softmax(copy.deepcopy(model).float().cpu().eval()(ids).logits, -1)

    def without(model: PeftModel) -> torch.Tensor:
        with model.disable_adapter():
            return scored(model)

    off = without(model)
    effect = scored(model) - off
    found = scored(handed) - (without(handed) if isinstance(handed, PeftModel) else off)
    return 1 - float((found - effect).square().sum() / effect.square().sum())


def shown(policy: Policy, model: PeftModel, requests: int = 4, tokens: int = 64, prompt: int = 64) -> Any:
    """``sync_guard.gap`` of sampled tokens, its share always taken: what the engine shows of the adapter."""
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(3)
    prompts = torch.randint(5, vocabulary, (requests, prompt), generator=generator).tolist()
    samples = sampled(policy, prompts, tokens, 1.0)

    def scored():
        pairs = zip(prompts, samples, strict=True)
        return [sync_guard.sampled_logprobs(model, ids, list(sample.ids), 1.0) for ids, sample in pairs]

    with model.disable_adapter():
        off = scored()
    return sync_guard.gap([list(s.logprobs) for s in samples], scored(), off, 0.0)


def sampled(
    policy: Policy, prompts: list[list[int]], tokens: int, temperature: float, keep: bool = False
) -> list[Sample]:
    """One turn after each prompt; with ``keep`` the policy is not told that they have ended."""
    task = Task("shown", "", "")
    asked = [Request(task, -9 - i, 0, ids, (7, i), tokens, temperature) for i, ids in enumerate(prompts)]

    async def together():
        return await asyncio.gather(*map(policy.sample, asked))

    for i in range(len(prompts)):
        policy.begin(-9 - i)  # or what ended before would clear the cache of these
    try:
        return asyncio.run(together())
    finally:
        if not keep:
            end(policy, len(prompts))


def end(policy: Policy, count: int) -> None:
    """Tell the policy that what ``sampled`` asked for has ended."""
    for i in range(count):
        policy.end(-9 - i)


# ---- faults
def plant_in_batch(trainer: Any, fault: str) -> None:
    """From the second step on, rollouts come from another policy than the one that is trained."""
    model, sample = trainer.model, trainer._roll

    def rollout(*arguments: Any, **options: Any) -> Any:
        if trainer.done == 0:
            return sample(*arguments, **options)
        before = {n: p.data.clone() for n, p in model.named_parameters() if "lora_B" in n}
        policy = trainer.policy
        if fault == "wrong adapter":
            move(model, 0.03, seed=9)
        if fault == "stale":
            policy._cache.forward = _stale(policy._cache.forward, model)
        if fault == "temperature":
            trainer.options["temperature"] = 1.5
        with model.disable_adapter() if fault == "withheld" else nullcontext():
            result = sample(*arguments, **options)
        for name, parameter in model.named_parameters():
            if name in before:
                parameter.data = before[name]
        return result

    trainer._roll = rollout


def _stale(forward: Callable, model: PeftModel) -> Callable:
    """Prompts computed with an adapter far from today's, as a cache of weights long gone would hold them."""
    adapter = [p for name, p in model.named_parameters() if "lora_B" in name]

    def computed(model_: Any, rows: Any, slots: Any, held: Any) -> torch.Tensor:
        if max(map(len, rows)) == 1:
            return forward(model_, rows, slots, held)
        today = [p.data.clone() for p in adapter]
        move(model, 0.5, seed=9)
        try:
            return forward(model_, rows, slots, held)
        finally:
            for parameter, data in zip(adapter, today, strict=True):
                parameter.data = data

    return computed


@contextmanager
def planted_in_sync(policy: Policy, model: PeftModel, fault: str, size: float = 0.03):
    """An engine with weights of its own, made wrong at the next sync; afterwards it is as it was."""
    # keys and values of a prompt under nearer weights than 0.1 differ by little more than rounding
    move(model, {"withheld": 0.0, "stale": 0.2}.get(fault, size), seed=5)
    policy.sync(model)  # what it stays with
    prompts = sync_guard.probe_prompts(policy.tokenizer)
    asyncio.run(sync_guard._probe(policy, prompts, 1.0))  # which fills its cache
    move(model, size, seed=6 if fault in ("wrong adapter", "stale") else 5)
    probe = sync_guard._probe
    if fault == "temperature":
        sync_guard._probe = lambda policy, probes, _: probe(policy, probes, 1.3)
    else:
        policy.sync = _under_the_old_name(policy) if fault == "stale" else lambda model: None
    try:
        yield
    finally:
        sync_guard._probe = probe
        vars(policy).pop("sync", None)


def _under_the_old_name(policy: Any) -> Callable:
    """A sync that brings the new adapter where the old one was and forgets to empty the prefix cache."""

    def renewed(model: PeftModel) -> None:
        old, engine = policy._adapter, policy._engine
        engine.remove_lora(old.lora_int_id)
        shutil.rmtree(old.lora_path)
        save_lora(model, Path(old.lora_path))
        engine.add_lora(old)

    return lambda model: policy._between_batches(renewed, model)


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
