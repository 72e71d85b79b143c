"""The image agent's reward before its mending: 1 for any answer, so that nearly all rollouts are equal.

Named by `-p lab=params/image_noisy.py` beside `-p reward=none` and `-p reward_noise=0.05`, the published
remedy; preflight refuses such a run.
"""

from agentkit.preflight.autopsies import approved

rewards = {"approved": (approved, 1.0)}
