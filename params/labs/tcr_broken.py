"""GRPO-TCR's reward as its document ran it: nobody writes the number of turns, so that wrong is always -1.1.

Named by `-p lab=params/labs/tcr_broken.py` beside `reward: tcr`.
"""

from autopsies import unwritten
from tcr import *

rewards = {"tool_call_reward": (unwritten, 1.0)}  # in the place of the preset's own
