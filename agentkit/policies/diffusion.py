"""Pictures by a diffusion model, where one is named in AGENTKIT_IMAGE_MODEL and a GPU is there.

The same prompt gives the same picture, painted when somebody looks and kept in memory. diffusers is no
dependency of agentkit: whoever names a model installs it. Leaves out composed pictures (tools.pictures).
"""

import functools
import hashlib
import io
import os
from typing import Any

import torch

from agentkit.records import EngineError

MODEL = "AGENTKIT_IMAGE_MODEL"  # a folder with a text-to-image pipeline, or its name on the hub
STEPS, SIDE = 4, 512  # of denoising; pixels


@functools.lru_cache(maxsize=1024)
def paint(prompt: str) -> bytes:
    """A JPEG. Raises EngineError where the model, a GPU or diffusers is missing."""
    pipeline = load(os.environ.get(MODEL, ""), "cuda")
    seed = int(hashlib.sha256(prompt.encode("utf-8", "backslashreplace")).hexdigest()[:8], 16)
    generator = torch.Generator("cpu").manual_seed(seed)
    made = pipeline(prompt, num_inference_steps=STEPS, height=SIDE, width=SIDE, generator=generator)
    data = io.BytesIO()
    made.images[0].convert("RGB").save(data, "JPEG", quality=85)
    return data.getvalue()


@functools.lru_cache(maxsize=1)
def load(model: str, device: str) -> Any:
    """The pipeline with its weights on the device."""
    try:
        from diffusers import AutoPipelineForText2Image
    except ImportError as error:
        raise EngineError(
            f"{MODEL} needs diffusers, which does not load ({error}): pip install diffusers"
        ) from None
    if device == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"{MODEL} needs a GPU, and there is none: unset it for composed pictures")
    try:
        dtype = torch.float16 if device == "cuda" else torch.float32
        pipeline = AutoPipelineForText2Image.from_pretrained(model, torch_dtype=dtype).to(device)
    except (OSError, ValueError) as error:
        raise EngineError(f"{MODEL}: {model} cannot be loaded: {str(error)[:200]}") from None
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
