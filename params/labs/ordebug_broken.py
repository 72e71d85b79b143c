"""OR-debug's reward as it was published by mistake: an unanchored pattern takes 20 from every text.

Named by `-p lab=params/labs/ordebug_broken.py`; preflight refuses such a run.
"""

from autopsies import matched
from ordebug import *

rewards = without_solver | {"faithfulness": (matched, 1.0)}
