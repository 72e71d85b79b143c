"""The lab files of params/labs, opened for a test, and two steps of GRPO with one."""

from types import ModuleType
from typing import Any

from agentkit import Lab, Suite, nano
from agentkit.policies.loading import load_agent
from agentkit.recipe import project_root
from agentkit.runs import Run
from agentkit.runs.labfile import load_module

LABS = project_root() / "params" / "labs"
SMALL = {"steps": 2, "prompts_per_step": 2, "group_size": 2, "micro_batch": 4, "val_every": 2, "val_tasks": 2,
         "max_turns": 2, "max_turn_tokens": 24, "max_tokens": 300, "learning_rate": 1e-3}  # fmt: skip


def lab_file(name: str) -> ModuleType:
    return load_module(LABS / f"{name}.py")


def opened(name: str, **changes: Any) -> Lab:
    """A lab whose one family has the file's name, with the file's own reward."""
    recipe = {"lab": str(LABS / f"{name}.py"), "families": name, "reward": "none", "suite_seed": 1}
    return Lab.open(recipe | changes)


def take_two_steps(lab: Lab, suite: Suite, run: Run) -> None:
    """Train in this process, with a budget that no answer fits in, and look at what is left behind."""
    small = Lab.open(lab.recipe.but(**SMALL))
    small.trainer(*load_agent(str(nano.DATA)), suite, run).train()
    assert run.metrics["step"].tolist() == [0, 1, 2]
    assert all(len(sampled) == 4 for _, sampled in run.rollouts())
    assert {name for t in run.trajectories(2) for name in t.components} >= set(lab.own_rewards)
