"""Base weights spread over the processes that train: a layer's are gathered while it computes, then dropped.

FSDP2's ``fully_shard`` takes the layers of the frozen model before an adapter is put on it. The adapter stays
whole in every process, its gradients averaged as without shards, so that optimiser, checkpoints and engines
see what they always see; accelerate's plugin for FSDP would spread it too, and ignores a CPU. Every process
must then call the model equally often. Leaves out embeddings and the output layer, which are whole while
anything computes in any case, and full fine-tuning.
"""

from typing import Any

import torch
from accelerate import accelerator
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from agentkit.policies.process_group import world
from agentkit.records import RecipeError


def mesh_of(device: str) -> DeviceMesh:
    """All processes of the job, each with a device of this kind; called by all of them at once."""
    return init_device_mesh(device, (world(),))


def shard(model: Any, mesh: DeviceMesh) -> Any:
    """Keep this process' part of each layer, on its device, and the rest whole; the model is frozen.

    One layer after the other goes to the device, where it is whole for a moment. Raises as ``layers_of``.
    """
    layers = layers_of(model)
    model.requires_grad_(False)
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    decoder = model.get_decoder()
    whole_ones = {weight for weight in decoder.parameters() if not isinstance(weight, DTensor)}
    fully_shard(
        decoder, mesh=mesh, ignored_params=whole_ones
    )  # so that a layer is fetched while another computes
    return model.to(mesh.device_type)


def layers_of(model: Any) -> list[torch.nn.Module]:
    """The layers that are sharded, each by itself. Raises RecipeError where they are not known."""
    kinds = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    if not layers:
        raise RecipeError(
            f"shard does not know the layers of a {model.config.model_type} model: leave shard out, or take "
            "another model"
        )
    return layers


def sharded(model: Any) -> bool:
    return any(isinstance(weight, DTensor) for weight in model.parameters())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A weight with all its shards; called by every process at once."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def leave_shards(model: Any) -> None:
    """Have DistributedDataParallel average the adapter's gradients and leave the shards alone."""
    names = [name for name, weight in model.named_parameters() if isinstance(weight, DTensor)]
    kind = torch.nn.parallel.DistributedDataParallel
    kind._set_params_and_buffers_to_ignore_for_model(model, names)
    if names:  # on GPUs accelerate refuses to wrap a model with a DTensor, ignored or not
        accelerator.model_has_dtensor = lambda model: False
