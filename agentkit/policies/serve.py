"""The command that serves a model for the server policy: vLLM's own server with what the policy needs.

Leaves out watching it: the user starts one server a card.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentkit.policies.engine_weights import save_weights
from agentkit.policies.loading import load_tokenizer, merged, pretrained
from agentkit.policies.precision import precision_of
from agentkit.policies.server import API_KEY
from agentkit.policies.vllm import CPU_ENVIRONMENT, lora_rank, missing
from agentkit.rollouts.policy import EngineError
from agentkit.runs import project_root
from agentkit.runs.files import adapter_base, model_path

CPU_SERVER = CPU_ENVIRONMENT | {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # less memory than with two processes
    "OMP_NUM_THREADS": "1",  # or servers and trainer wait for each other, six times as long
}
FIXED = {"generation-config": "vllm", "logprobs-mode": "processed_logprobs"}


def served(port: int) -> Path:
    """Where the server on a port keeps the model that it has merged."""
    return project_root() / "outputs" / ".served" / str(port)


def serve_command(
    model: str, folder: Path, *, merge: Sequence[str | Path] = (), host: str = "127.0.0.1", port: int = 8000,
    max_lora_rank: int = 0, max_length: int | None = None, memory_share: float = 0.9,
    precision: str = "auto", tensor_parallel: int = 1,
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Command line and environment of a server; the arguments are those of ``agentkit serve``.

    ``folder`` is where the model is written if it cannot be served as it lies, being merged.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(missing())
    cpu = not torch.cuda.is_available()
    source, dtype, longest = _servable(model, folder, merge, precision)
    options = FIXED | {
        "model": source,
        "host": host,
        "port": port,
        "dtype": dtype,
        "served-model-name": "agentkit",
        "gpu-memory-utilization": memory_share,
        "tensor-parallel-size": tensor_parallel,
    }
    environment = {"VLLM_NO_USAGE_STATS": "1"} | (CPU_SERVER if cpu else {}) | os.environ
    switches = ["--language-model-only", *(["--enforce-eager", "--no-enable-chunked-prefill"] if cpu else [])]
    if max_length:
        options["max-model-len"] = min(max_length, longest)
    if max_lora_rank:
        options["max-lora-rank"] = lora_rank(max_lora_rank)
        switches.append("--enable-lora")
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if key := os.environ.get(API_KEY):
        environment["VLLM_API_KEY"] = key
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags, *switches], environment


def _servable(model: str, folder: Path, merge: Sequence[str | Path], precision: str) -> tuple[str, str, int]:
    """The folder or name that vLLM loads, its dtype, and how many tokens the model takes."""
    source, dtype = model_path(model), precision_of(precision)
    config = pretrained(AutoConfig, model)
    longest = config.get_text_config().max_position_embeddings
    is_part = False
    with contextlib.suppress(ValueError), torch.device("meta"):  # one that vLLM alone knows
        is_part = type(AutoModelForCausalLM.from_config(config).config) is not type(config)
    # what a trainer hands over names the part's weights; no card may hold it all
    if merge or is_part or adapter_base(model):
        save_weights(merged(model, merge, dtype), folder)
        load_tokenizer(model).save_pretrained(folder)
        source = str(folder)
    return source, str(dtype).removeprefix("torch."), longest
