"""What vLLM's worker is taught: take over weights in place. vLLM imports it before it loads a model.

vLLM 0.32 on a CPU drops the weights of linear layers once its kernels are set up, so that nothing can be
loaded into them again; importing this keeps them. Leaves out vLLM's own ``reload_weights``, which is wrong on
a CPU where embeddings are tied.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.model_executor.layers import utils as layers
from vllm.platforms import current_platform

if current_platform.is_cpu() and not hasattr(layers, "agentkit_dispatch"):
    layers.agentkit_dispatch = layers.dispatch_cpu_unquantized_gemm
    layers.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: layers.agentkit_dispatch(
        layer, remove_weight=False
    )


class WeightSync:
    """Mixed into vLLM's worker with ``worker_extension_cls``; its methods are called with collective_rpc."""

    def agentkit_take(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load all weights of the served model in place, by name."""
        model: Any = self.model_runner.get_model()  # type: ignore[attr-defined]
        with torch.no_grad():
            model.load_weights(weights)
            for layer in model.modules() if current_platform.is_cpu() else ():
                if hasattr(layer, "cpu_linear"):  # a kernel that may hold a copy of the weight
                    layers.agentkit_dispatch(layer, remove_weight=False)

    def agentkit_take_folder(self, folder: str) -> None:
        """Load the weights that ``engine_weights.save_weights`` wrote."""
        self.agentkit_take(load_file(Path(folder) / "model.safetensors").items())
