"""GRPO-TCR without its tool-call reward: wrong is -1 whatever was called, a program earns its share of tests.

Named by `-p lab=params/labs/tcr_without.py` beside `reward: tcr`.
"""

from tcr import *

from agentkit.rewards.components import outcome

rewards = {"tool_call_reward": (outcome, 1.0)}  # in the place of the preset's own
