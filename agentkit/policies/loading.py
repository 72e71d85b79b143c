"""Loading models, LoRA adapters merged into them, and the policies that sample from them.

Leaves out what Unsloth loads (unsloth.py) and servers that run elsewhere (serve.py).
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from agentkit.nano import NANO
from agentkit.policies.engine_weights import folded
from agentkit.policies.precision import precision_of
from agentkit.policies.process_group import in_turn, world
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.policies.server import ServerPolicy
from agentkit.policies.shards import mesh_of, shard
from agentkit.policies.sync_guard import sync
from agentkit.policies.transformers import TransformersPolicy
from agentkit.policies.vllm import VllmPolicy
from agentkit.recipe import SCRIPTED, Recipe
from agentkit.rollouts.policy import Policy
from agentkit.rollouts.template_probe import with_template
from agentkit.runs import Run, RunError
from agentkit.runs.files import ADAPTER, adapter_base, model_path

_MISTRALS = ("mistral", "mistral3", "ministral", "pixtral", "voxtral")  # some split text wrongly unless told
# else the hub's library fetches a list from there, even where local files alone are asked for
constants.HF_HUB_DISABLE_TELEMETRY = True
PROMPT_ROOM = 8192  # tokens that vLLM keeps room for, before a trajectory's own


def load_agent(
    model: str,
    merge: Sequence[str | Path] = (),
    adapter: str | Path | None = None,
    precision: str = "auto",
    chat: tuple[str, Mapping[str, Any]] = ("", {}),
    shards: bool = False,
    apart: bool = False,
) -> tuple[Any, Any]:
    """A model and its tokenizer, on the GPU where there is one.

    Args:
        model: "nano", a folder or a hub name; "scripted" is no model, so None, with nano's tokenizer.
        merge: adapter folders folded in, in order.
        adapter: one more on top of these: folded in float32, where that samples faster and loses nothing; an
            adapter still in half precision, where rounding would lose it, and where it is to stay ``apart``.
        precision: float32, bfloat16, or auto: bfloat16 on a GPU, else float32.
        chat: the recipe's chat template and its arguments (``Recipe.chat``).
        shards: spread its layers over the processes, where there are several; they load it one by one, so
            that main memory holds it once.

    Raises:
        FileNotFoundError: the model cannot be loaded; the message says what to do.
        RecipeError: the chat template cannot.
        RunError: an adapter cannot.
    """
    if model == SCRIPTED:
        return None, load_tokenizer(model, chat)
    if model == NANO:
        torch.set_num_threads(1)  # of a busy machine, two waited for each other
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = precision_of(precision)
    torch.backends.cuda.enable_cudnn_sdp(False)  # on Hopper it plans anew for each length of the keys
    tokenizer = load_tokenizer(model, chat)
    keeps = adapter is not None and (apart or dtype != torch.float32)
    folders = [*merge] if keeps or adapter is None else [*merge, adapter]
    if shards and world() > 1:
        mesh = mesh_of(device)
        loaded = in_turn(lambda: shard(merged(model, folders, dtype), mesh))
    else:
        loaded = merged(model, folders, dtype)
    if keeps:
        loaded = with_adapter(loaded, Path(adapter))
    return without_dropout(loaded.to(device)), tokenizer


def without_dropout(model: Any) -> Any:
    """The model, which computes in training what it computes in sampling: Granite's attention drops 10 %."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and (
                name.endswith(("dropout", "pdrop")) or isinstance(module, torch.nn.Dropout)
            ):
                setattr(module, name, 0.0)
    return model


def merged(model: str, folders: Iterable[str | Path], dtype: torch.dtype) -> Any:
    """A model in main memory with adapters folded in, in order. Raises as ``load_agent``."""
    logging.disable_progress_bar()  # a bar for each load says nothing here
    loaded = pretrained(AutoModelForCausalLM, model, dtype=dtype)
    for folder in folders:
        loaded = folded(with_adapter(loaded, Path(folder)))
    return loaded


def load_tokenizer(model: str, chat: tuple[str, Mapping[str, Any]] = ("", {})) -> Any:
    """A model's tokenizer alone, with the recipe's chat template. Raises as ``load_agent``."""
    model = NANO if model == SCRIPTED else model
    options = {"mistral_format": False}  # whose tokenizer has no chat template
    if pretrained(AutoConfig, model).model_type in _MISTRALS:
        options["fix_mistral_regex"] = True
    tokenizer = pretrained(AutoTokenizer, model, **options)
    with_template(tokenizer, *chat)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def pretrained(kind: Any, model: str, **options: Any) -> Any:
    """What ``kind`` loads of a model; of a LoRA adapter's folder its base, with the adapter folded in."""
    base, path, of = adapter_base(model), Path(model_path(model)), ""
    if base and kind is AutoModelForCausalLM:
        return _with_first_adapter(base, path, **options)
    if base and not (kind is AutoTokenizer and (path / "tokenizer_config.json").is_file()):
        model, of = base, f", the base of the adapter {model}"
    try:
        loaded = kind.from_pretrained(model_path(model), **options)
    except (OSError, ValueError, SafetensorError) as error:
        raise FileNotFoundError(
            f"cannot load the model {model!r}{of}: {told(error)}. Use 'nano', a folder (the first lines of a "
            "recipe say how its model is made) or a hub name."
        ) from None
    if of and getattr(loaded, "quantization_config", None):
        raise FileNotFoundError(
            f"the weights of {model}{of}, are quantised, so nothing can be folded into them: write its name "
            f"with 16-bit weights in {path / ADAPTER}, as base_model_name_or_path"
        )
    return loaded


def _with_first_adapter(base: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A model with an adapter folded in, in float32, so that only the sum is rounded."""
    loaded = with_adapter(pretrained(AutoModelForCausalLM, base, dtype=torch.float32), folder)
    if why := _unfoldable(loaded):
        raise RunError(f"the adapter in {folder} cannot be folded into its base: {why}")
    loaded = loaded.merge_and_unload()
    for weight in loaded.parameters():  # and no buffer: RoPE's frequencies stay as they are
        weight.data = weight.data.to(dtype)
    loaded.name_or_path = str(folder)  # what is trained on it is no adapter of the base alone
    return loaded


def _unfoldable(model: Any) -> str:
    kind = model.active_peft_config.peft_type.value
    if not hasattr(model, "merge_and_unload"):
        return f"it is {kind}, and a LoRA could be"
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.tie_word_embeddings and any(type(layer).__module__.startswith("peft") for layer in ends):
        return "its embeddings are the output layer too: train it without embed_tokens and lm_head"
    return ""


def told(error: Exception) -> str:
    """What the hub's library says, in a line."""
    return textwrap.shorten(str(error), 200, placeholder=" …").rstrip(".")


def agent_of(run: Run, recipe: Recipe, name: str) -> tuple[Any, Any]:
    """The model behind a policy of a run and its tokenizer: "base", "sft", "grpo" or a control. Raises as
    ``load_agent``.
    """
    cold_start, trained = adapters_of(run, recipe, name)
    apart = recipe.engine == "server"  # which takes an adapter and no weights
    return load_agent(recipe.model, cold_start, trained, recipe.precision, recipe.chat, recipe.shard, apart)


def adapters_of(run: Run, recipe: Recipe, name: str) -> tuple[list[Path], Path | None]:
    """Folders of the adapters under a policy of a run, and of its own. Raises RunError where one lacks."""
    cold_start = [run.file("sft")] if recipe.sft and name != "base" else []
    own = None if name in ("base", "sft") else run.file("adapter" if name == "grpo" else name)
    for folder in [*cold_start, *([own] if own else [])]:
        if not (folder / ADAPTER).is_file():
            raise RunError(
                f"the run has no policy {name[:60]!r}: {folder} holds no adapter. Name base, sft, grpo or a "
                "control that was trained"
            )
    return cold_start, own


def with_adapter(model: Any, folder: Path) -> Any:
    """A model with an adapter beside its weights. Raises RunError where its files cannot be used."""
    try:
        adapted = PeftModel.from_pretrained(model, str(folder), torch_device=str(model.device))
        if not all(p.isfinite().all() for name, p in adapted.named_parameters() if "lora_" in name):
            raise ValueError("it holds weights that are no numbers")
        return adapted
    except Exception as error:  # PEFT, safetensors and torch have one each for a damaged file
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RunError(
            f"the adapter in {folder} cannot be used ({why}). Restore it, or train it again."
        ) from None


def longest(config: Any, recipe: Recipe) -> int:
    """Prompt and completion tokens of one trajectory that an engine is made for."""
    return min(config.get_text_config().max_position_embeddings, recipe.max_tokens + PROMPT_ROOM)


def make_policy(model: Any, tokenizer: Any, name: str, recipe: Recipe, engine: Any = None) -> Policy:
    """The policy that samples from a loaded model on the recipe's engine. Close it, or use it in a ``with``.

    An engine with weights of its own is given the model's and must then compute the same (``sync``), else
    EngineError. ``engine`` is vLLM's where Unsloth loaded the model (``unsloth.adapted``).
    """
    if not recipe.can_train:
        return ScriptedPolicy(tokenizer, Flaws(**recipe.flaws), name, recipe.skill)
    if recipe.engine == "transformers" or (recipe.engine == "unsloth" and not torch.cuda.is_available()):
        options = recipe.max_batch, recipe.deterministic, recipe.engine_memory
        return TransformersPolicy(model, tokenizer, name, *options)
    if recipe.engine == "server":
        wait = max(600.0, recipe.trajectory_timeout_s + 60.0)  # the trajectory's own clock ends first
        policy = ServerPolicy(recipe.server_urls, tokenizer, name, timeout_s=wait)
        policy.in_flight = max(1, recipe.max_batch * len(recipe.server_urls) // world())
    else:
        room = {
            "max_length": longest(model.config, recipe),
            "memory_share": recipe.engine_memory,
            "max_batch": recipe.max_batch,
        }
        policy = VllmPolicy(model, tokenizer, name, engine=engine, **room)
        policy.in_flight = recipe.max_batch
    try:
        sync(policy, model, recipe.temperature)
    except BaseException:
        policy.close()
        raise
    return policy
