"""Training: the SFT cold start and GRPO on agent trajectories.

Importing it silences TRL 1.15's warning, once for each of its modules, that vLLM 0.32 is newer than it knows:
this pair of versions is the one that was tested. Any other version still warns.
"""

import warnings

warnings.filterwarnings(
    "ignore", r"TRL currently supports vLLM versions from 0\.21\.0 to 0\.31\.0\. You have version 0\.32\.0"
)
