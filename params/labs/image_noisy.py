"""The image agent's reward before its mending: 1 for any answer, so that nearly all rollouts are equal,
and the published remedy, noise.

Named by `-p lab=params/labs/image_noisy.py`; preflight refuses such a run.
"""

from autopsies import noisy
from image import *

rewards = noisy()
