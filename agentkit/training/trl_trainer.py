"""TRL's GRPOTrainer, loaded without vLLM.

Where vLLM is installed TRL would import it, and Ray with it, for a generation that the rollout loop replaces:
half of the seconds in which each process begins. TRL's own ``use_vllm`` is not to be had in a process that
loaded this before TRL's trainer.
"""

from trl import import_utils

_has_vllm = import_utils.is_vllm_available
import_utils.is_vllm_available = lambda min_version=None: False
try:
    from trl import GRPOTrainer
finally:
    import_utils.is_vllm_available = _has_vllm

__all__ = ["GRPOTrainer"]
