"""One of the processes that launch starts: ``python -m torch.distributed.run ... -m agentkit.training.worker
RUN``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

import torch

from agentkit.lab import Lab
from agentkit.policies.loading import load_agent
from agentkit.runs import Run, RunError, read_json, write_json
from agentkit.runs.recipe import Recipe
from agentkit.training.launch import JOB, MARK, WATCH


def main(folder: str) -> int:
    """Train; the first process writes the result beside the job."""
    os.umask(0o077)
    if os.environ.get(WATCH):
        threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    from agentkit.training.grpo import train

    run = Run(folder)
    job = read_json(run.file(JOB))
    lab = Lab.open(Recipe.from_mapping(job["recipe"]))
    recipe = lab.recipe
    agent, tokenizer = load_agent(recipe.model, merge=[run.file("sft")] if recipe.sft else [])
    trainer = lab.trainer(agent, tokenizer, lab.load(run), run, on_metrics=_tell)
    result = train(trainer)
    if trainer.accelerator.is_main_process:
        write_json(run.file(JOB), job | {"result": result})
    return 0


def _tell(row: dict[str, Any]) -> None:
    print(MARK + json.dumps(row), flush=True)


def _stop_with_the_parent() -> None:
    """Standard input ends when the process that launched this one has gone."""
    while sys.stdin.buffer.raw.read(1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except RunError as error:
        sys.exit(f"RunError: {error}")
