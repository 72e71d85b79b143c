"""Each system's lab trains: two steps of GRPO, with a budget that no answer fits in."""

import pytest
from opened import opened

from agentkit import nano
from agentkit.policies.loading import load_agent
from agentkit.runs import Run

SMALL = {"n_tasks": 40, "steps": 2, "prompts_per_step": 2, "group_size": 2, "micro_batch": 4, "val_every": 2, "val_tasks": 2,
         "max_turns": 2, "max_turn_tokens": 24, "max_tokens": 300, "learning_rate": 1e-3}  # fmt: skip
OTHERS = {  # whose families have other names than the file
    "tcr": {"families": "deepscaler,omni_math,numina_math,taco_code,leetcode_code", "reward": "tcr"},
    "wide": {"families": "A,B", "reward": "plan"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drawing", "image", "ordebug", *OTHERS])
def test_two_steps_of_grpo(name, tmp_path):
    lab, run = opened(name, **SMALL | OTHERS.get(name, {})), Run.create(tmp_path / "run")
    lab.trainer(*load_agent(str(nano.DATA)), lab.suite(), run).train()
    assert run.metrics["step"].tolist() == [0, 1, 2]
    assert all(len(sampled) == 4 for _, sampled in run.rollouts())
    assert {name for t in run.trajectories(2) for name in t.components} >= set(lab.own_rewards)
