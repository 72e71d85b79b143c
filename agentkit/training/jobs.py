"""The jobs of notebooks 02, 03 and 05: each the same function in this process or in several together.

They take the lab, the run and somebody to tell metrics, and leave what they made in the run's files, written
by the first process. TRL, which looks at the device, is loaded where one trains with it. Leaves out who does
them (launch) and preflight (preflight).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentkit.evaluation import Comparison, compare
from agentkit.lab import Lab
from agentkit.policies.loading import adapters_of, agent_of, make_policy
from agentkit.policies.process_group import on_main_process, world
from agentkit.records import DataError
from agentkit.rollouts import rollout
from agentkit.runs import Run, read_trajectories, write_json
from agentkit.tasks.public.gaia import HUB, load
from agentkit.training.launch import DEMONSTRATIONS, OnMetrics
from agentkit.trajectories import by_task


def cold_start(lab: Lab, run: Run, tell: OnMetrics) -> dict[str, Any]:
    """Fine-tune the agent on the demonstrations that the notebook left in the run."""
    from agentkit.training import sft

    agent, tokenizer = agent_of(run, lab.recipe, "base")
    shown = read_trajectories(run.file(DEMONSTRATIONS))
    return {"log": sft.cold_start(agent, tokenizer, shown, lab.recipe, run.file("sft"))}


def measure(lab: Lab, run: Run, tell: OnMetrics, name: str, sift: bool = False) -> dict[str, Any]:
    """Measure a policy of the run on its test, and sift the training tasks by it where that is asked for."""
    suite = lab.load(run)
    agent, tokenizer = agent_of(run, lab.recipe, name)
    with make_policy(agent, tokenizer, name, lab.recipe) as policy:
        lab.measure(run, policy, suite.split("test"))
        return {"sifted": lab.sift(run, policy, suite) if sift else ""}


def control(lab: Lab, run: Run, tell: OnMetrics, name: str) -> dict[str, Any]:
    """Train a control with the recipe of the run, sampled from by this job's engine, and measure it."""
    from agentkit.training.controls import train_control

    suite, whole = lab.load(run), Lab.of(run)
    whole = replace(
        whole, recipe=whole.recipe.but(engine=lab.recipe.engine, server_urls=lab.recipe.server_urls)
    )
    tasks = suite.split("train") if name == "sft_more" else lab.train_tasks(suite)  # rft: as GRPO had them
    agent, tokenizer, figures = train_control(name, whole, run, tasks)
    with make_policy(agent, tokenizer, name, lab.recipe) as policy:
        lab.measure(run, policy, suite.split("test"))
    return {"figures": figures}


def train(lab: Lab, run: Run, tell: OnMetrics) -> dict[str, Any]:
    """GRPO from the SFT reference; of a stand-in one step without its update."""
    if not lab.recipe.can_train:
        from agentkit.training.rehearsal import sampled_step

        return sampled_step(lab, run, tell)
    agent, tokenizer = agent_of(run, lab.recipe, "sft")
    return lab.trainer(agent, tokenizer, lab.load(run), run, on_metrics=tell).train()


def notebook_03(lab: Lab, run: Run, tell: OnMetrics) -> dict[str, Any]:
    """What notebook 03 leaves in a run, for processes that the user started on several machines."""
    lab = lab.planned(lab.load(run))
    inputs = ["tasks.jsonl", "baseline.json"] + ["sft"] * lab.recipe.sft
    on_main_process(lambda: run.begin("03_grpo", lab.recipe.used(), lab=lab.digest, inputs=inputs))
    result = train(lab, run, tell)
    told = {"topology": f"{world()} processes, started by the user", "devices": world()}
    on_main_process(lambda: run.end("03_grpo", **result, **told))
    return result


def gaia(
    lab: Lab,
    run: Run,
    source: str | Path = "hub",
    *,
    policies: Sequence[str] = ("sft", "grpo"),
    levels: Sequence[int] = (1, 2, 3),
    limit: int | None = None,
) -> Comparison:
    """Agents of a run on GAIA's validation tasks with the workbench's tools, by level.

    Nothing of a question may be reshared: gaia.json holds ids and scores, no trajectory is stored, and
    no answer of a tool is cached.

    Args:
        source: a folder with GAIA's files, or hub.
        policies: names of policies of the run, the baseline first.
    """
    for name in policies:
        adapters_of(run, lab.recipe, name)  # before hours are spent on the first
    if source != "hub" and not Path(source).exists():
        raise DataError(f"{source} does not exist: name the folder with GAIA's files, or hub")
    tasks = load(HUB if source == "hub" else source, levels=levels, limit=limit)
    if not any(task.answer for task in tasks):
        raise DataError(f"{source} holds no task of level {levels} whose answer is known: take validation")
    measured, scores = {}, {}
    for name in policies:
        changes = {"group_size": lab.recipe.test_samples, "tool_cache": None, "progress": f"{name}, GAIA"}
        with make_policy(*agent_of(run, lab.recipe, name), name, lab.recipe) as policy:
            measured[name] = rollout(tasks, policy, **lab.options(seed=lab.recipe.seed, **changes))
        own = by_task(measured[name]).items()
        scores[name] = {task: [t.success for t in samples] for task, samples in own}
        comparison = compare(measured, tasks).of_run(run)
        write_json(run.file("gaia.json"), comparison.to_json() | {"scores": scores})
    return comparison
