"""The reward of OR-debug as it was published by mistake: an unanchored pattern takes 20 from every text.

Named by `-p lab=params/ordebug_broken.py` beside `-p reward=ordebug`; preflight refuses such a run.
"""

from agentkit.preflight.autopsies import matched

rewards = {"faithfulness": (matched, 1.0)}  # in the place of the preset's own
