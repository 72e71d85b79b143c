"""GRPO-TCR's reward as its document ran it: nobody writes the number of turns, so that wrong is always -1.1.

Named by `-p lab=params/tcr_broken.py` beside `reward: tcr`.
"""

from agentkit.preflight.autopsies import unwritten

rewards = {"tool_call_reward": (unwritten, 1.0)}  # in the place of the preset's own
