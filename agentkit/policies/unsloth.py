"""Models loaded and trained by Unsloth (``engine: unsloth``).

On a GPU it brings kernels of its own, base weights in 4 bits where asked, and a vLLM engine that reads the
trained model's own weights, so that only the adapter is handed over after an update. Its CPU backend is
transformers and PEFT with a few patches: there the transformers policy samples, and nothing gets faster.
Unsloth patches TRL, transformers and PEFT when it is imported, so it has to come before them
(``import_first``). Leaves out several processes, and Unsloth's own loss.
"""

import importlib.util
import os
import sys
import tempfile
from typing import Any

from agentkit.rollouts.policy import EngineError
from agentkit.runs import Recipe, user_cache

LATER = ("trl", "transformers", "peft")
LINEAR = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()  # all, for its fused kernels


def import_first(engine: str) -> None:
    """Import Unsloth where it is the engine. Call it before anything imports TRL, transformers or PEFT.

    Raises:
        EngineError: Unsloth is not installed, or one of the three was imported before it.
    """
    if engine != "unsloth" or "unsloth" in sys.modules:
        return
    if importlib.util.find_spec("unsloth") is None:
        raise EngineError(
            "Unsloth is not installed here: pip install -c requirements-gpu.lock -e '.[vllm,unsloth]' (on a "
            "CPU pip install -c requirements-gpu.lock --no-deps unsloth unsloth_zoo), "
            "or use engine: transformers"
        )
    if early := [name for name in LATER if name in sys.modules]:
        raise EngineError(
            f"engine: unsloth needs Unsloth to be imported before {', '.join(LATER)}, and this process has "
            f"imported {', '.join(early)} already: start a fresh one (in a notebook: restart the kernel) and "
            "begin with\n"
            "    from agentkit.policies.unsloth import import_first\n    import_first('unsloth')"
        )
    cache = user_cache("unsloth")
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache))  # else a folder in the working directory
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    _kernels_that_run()
    import unsloth  # noqa: F401


def _kernels_that_run() -> None:
    """Unsloth imports ``vllm._C`` wherever vLLM's CPU build is installed, which ends the process on a
    processor without AVX-512: there that name is given to the library that vLLM itself would take.
    """
    import torch

    if torch.cpu._is_avx512_bf16_supported() or importlib.util.find_spec("vllm") is None:
        return
    library = "vllm._C_AVX512" if torch.cpu._is_avx512_supported() else "vllm._C_AVX2"
    if found := importlib.util.find_spec(library):  # vLLM's build for a GPU has none
        spec = importlib.util.spec_from_file_location("vllm._C", found.origin)
        sys.modules["vllm._C"] = importlib.util.module_from_spec(spec)


def adapted(model: Any, tokenizer: Any, recipe: Recipe) -> tuple[Any, Any]:
    """The same model loaded by Unsloth, with a new LoRA adapter, and on a GPU vLLM's engine for its weights.

    The weights go through a folder, because they may be merged from several, are quantised as they are read,
    and are read by vLLM too. The tokenizer stays the one to use: Unsloth's may have other special tokens.
    """
    import_first("unsloth")
    import torch
    from unsloth import FastLanguageModel

    from agentkit.policies.loading import longest
    from agentkit.policies.vllm import lora_rank

    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="agentkit-unsloth-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        loaded, _ = FastLanguageModel.from_pretrained(
            folder,
            max_seq_length=longest(model.config, recipe),
            dtype=model.to("cpu").dtype,
            load_in_4bit=recipe.load_in_4bit,
            use_exact_model_name=True,
            fast_inference=cuda,  # Unsloth has none on a CPU
            gpu_memory_utilization=recipe.engine_memory,
            max_lora_rank=lora_rank(recipe.lora_r),
        )
    in_4_bits = any(type(weight).__name__ == "Params4bit" for weight in loaded.parameters())
    if recipe.load_in_4bit and not in_4_bits:
        raise EngineError(
            "load_in_4bit: Unsloth has loaded 16-bit weights instead; install bitsandbytes, or leave it out"
        )
    engine = vars(loaded).pop("vllm_engine", None)  # under that name TRL's trainer would sample with it
    from agentkit.policies.loading import without_dropout

    loaded = without_dropout(loaded)
    loaded.name_or_path = loaded.config._name_or_path = model.name_or_path  # not the folder, which is gone
    peft = FastLanguageModel.get_peft_model(
        loaded,
        r=recipe.lora_r,
        target_modules=LINEAR,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        use_gradient_checkpointing="unsloth" if cuda else False,
        random_state=recipe.seed,
    )
    return peft, engine and engine.llm_engine
