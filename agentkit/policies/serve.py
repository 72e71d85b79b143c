"""The command that serves a model for the server policy: vLLM's own server with what the policy needs.

Leaves out starting and watching several replicas, which is a process manager's work.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from agentkit.policies.loading import load_agent
from agentkit.policies.server import API_KEY
from agentkit.policies.vllm import CPU_ENVIRONMENT, EXTENSION, lora_rank, missing
from agentkit.policies.weights import HeadPadding, save_weights
from agentkit.rollouts.policy import EngineError

SERVED = "agentkit"  # what the server calls the model


def serve_command(
    model: str, folder: Path, *, merge: Sequence[str | Path] = (), host: str = "127.0.0.1", port: int = 8000,
    max_lora_rank: int = 0, max_length: int | None = None, memory_share: float = 0.9,
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Command line and environment of a server.

    A server of this kind lets whoever reaches it load weights and run its worker's methods: keep it on the
    local machine or in a private network. An API key (environment variable AGENTKIT_API_KEY) guards
    completions only.

    Args:
        model: "nano", a folder or a hub name.
        folder: where the model is written if it cannot be served as it lies: merged, or padded for a CPU.
        merge: adapter folders merged in.
        host: address to listen on.
        port: port to listen on.
        max_lora_rank: of the adapters that training will send; 0 where it sends whole weights.
        max_length: prompt and completion tokens at most; None is what the model allows.
        memory_share: of the GPU's memory.

    Raises:
        EngineError: vLLM is not installed, or cannot run this model.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(missing())
    loaded, tokenizer = load_agent(model, merge)
    padding = None if torch.cuda.is_available() else HeadPadding.needed(loaded.config)
    source = loaded.config._name_or_path
    if merge or padding:
        save_weights(loaded, folder, padding)
        tokenizer.save_pretrained(folder)
        source = str(folder)
    options = {"model": source, "host": host, "port": port, "dtype": str(loaded.dtype).removeprefix("torch.")}
    options |= {"gpu-memory-utilization": memory_share}
    if max_length:
        options["max-model-len"] = max_length
    if max_lora_rank:
        options |= {"max-loras": 1, "max-lora-rank": lora_rank(max_lora_rank)}
    return _command(options), _environment(takes_adapters=max_lora_rank > 0)


def _command(options: dict[str, object]) -> list[str]:
    options |= {"served-model-name": SERVED, "worker-extension-cls": EXTENSION}
    options |= {"logprobs-mode": "processed_logprobs", "generation-config": "vllm"}
    switches = [] if torch.cuda.is_available() else ["--enforce-eager", "--no-enable-chunked-prefill"]
    switches += ["--enable-lora"] if "max-lora-rank" in options else []
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags, *switches]


def _environment(takes_adapters: bool) -> dict[str, str]:
    """This process' own, and what opens the ways to load weights and to drop the prefix cache."""
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if not torch.cuda.is_available():  # its worker is no process of its own: less memory
        environment |= CPU_ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    environment |= os.environ
    environment["VLLM_SERVER_DEV_MODE"] = "1"
    if takes_adapters:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if key := os.environ.get(API_KEY):
        environment["VLLM_API_KEY"] = key
    return environment
