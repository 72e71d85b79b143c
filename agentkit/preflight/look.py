"""A first look at the agent that GRPO starts from: some groups to show, and preflight's report, in one job.

Leaves out what preflight looks at (examine) and who does the job (training.launch).
"""

from collections.abc import Callable
from typing import Any

from agentkit.lab import Lab
from agentkit.policies.loading import agent_of, make_policy
from agentkit.policies.ranks import on_main_process
from agentkit.preflight import Preflight, examine
from agentkit.records import Trajectory
from agentkit.runs import Run, read_trajectories, write_trajectories
from agentkit.training.launch import Work

FIRST = 8  # training tasks whose groups are shown
SHOWN = ".first_groups.parquet"  # in the run's folder


def first_look(work: Work) -> tuple[list[Trajectory], Preflight | None]:
    """Groups of the first training tasks, and the report where the recipe asks for one (preflight.json)."""
    work.sample("agentkit.preflight.look:look")
    wanted = work.lab.recipe.preflight != "off"
    report = Preflight.load(work.run.file("preflight.json")) if wanted else None
    return read_trajectories(work.run.file(SHOWN)), report


def look(lab: Lab, run: Run, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The job: in this process, or in several that each roll out a share."""
    recipe, suite = lab.recipe, lab.load(run)
    tasks = lab.train_tasks(suite)
    agent, tokenizer = agent_of(run, recipe, "sft")
    with make_policy(agent, tokenizer, "sft", recipe) as policy:
        shown = lab.rollout(tasks[:FIRST], policy, group_size=recipe.group_size)
        on_main_process(lambda: write_trajectories(run.file(SHOWN), shown))
        if recipe.preflight == "off":
            return {}
        test = suite.split("test")
        report, rollouts = examine(lab, policy, tasks, model=agent, test=test, run=run, progress=True)

    def keep() -> None:
        report.save(run.file("preflight.json"))
        write_trajectories(run.file("preflight.parquet"), rollouts)

    on_main_process(keep)
    return {}
