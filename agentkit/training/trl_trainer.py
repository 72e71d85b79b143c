"""TRL's GRPOTrainer, loaded without vLLM.

Where vLLM is installed TRL would import it, and Ray with it, for a generation that the rollout loop replaces:
half of the seconds in which each process begins.
"""

from trl import import_utils

_is_available = import_utils.is_vllm_available


def _is_hidden(min_version: str | None = None) -> bool:
    if import_utils.is_vllm_available is _is_hidden:
        return False  # while it is loaded
    raise ImportError(
        "agentkit has loaded TRL without vLLM here: run TRL's own use_vllm in another process, or import "
        "trl.GRPOTrainer before agentkit.training.grpo"
    )


import_utils.is_vllm_available = _is_hidden
try:
    from trl import GRPOTrainer
finally:
    import_utils.is_vllm_available = _is_available

__all__ = ["GRPOTrainer"]
