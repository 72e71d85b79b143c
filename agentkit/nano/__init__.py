"""The small agent that ships: a Qwen3 model of about two million parameters that knows formats, not facts.

It was pre-trained on transcripts about made-up worlds; ``.ci/pretrain.py`` makes it again.
Leaves out loading it (policies.loading).
"""

from pathlib import Path

DATA = Path(__file__).with_name("data")
NANO = "nano"  # what a recipe's ``model`` says to mean the agent that ships
