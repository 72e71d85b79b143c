"""The examination of a run before it starts: rollouts, scorings, the expert's, and all checks of them.

Leaves out what each check looks at (checks, causes, reward_checks, task_checks) and forecasting.
"""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from agentkit.lab import Lab
from agentkit.policies import slot_cache
from agentkit.policies.loading import agent_of, load_agent, make_policy
from agentkit.policies.process_group import on_main_process, spread, world
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.preflight import causes, checks, reward_checks, task_checks
from agentkit.preflight.forecasting import forecast
from agentkit.preflight.probe import Probed, probe, righted
from agentkit.preflight.report import Item, Preflight
from agentkit.preflight.task_checks import evenly
from agentkit.records import RecipeError, Task, Trajectory
from agentkit.rewards import Reward, score_all
from agentkit.rollouts import rollout
from agentkit.rollouts.policy import Policy
from agentkit.rollouts.tokens import exact_decode
from agentkit.runs import Recipe, Run, read_trajectories, write_trajectories
from agentkit.training import memory
from agentkit.training.advantages import teaches_nothing
from agentkit.training.launch import Work
from agentkit.training.update_timing import update_seconds
from agentkit.trajectories import groups_by_task, results_of

TASKS, REPEATS, PROBED = 12, 4, 3
GOLD = 2  # by the expert, for each that is rolled out: it, and the one behind, which may be its pair
SHIFT = 7_919  # between the seeds of repeated scorings, on which no reward may depend


def examine(
    lab: Lab,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    model: Any = None,
    test: Sequence[Task] = (),
    progress: bool = False,
    run: Run | None = None,
) -> tuple[Preflight, list[Trajectory]]:
    """Roll out the starting policy on some training tasks and report; the rollouts are given back, scored.

    Where memory does not suffice, nothing is. Else at least TASKS of them, spread over the list, as many at
    once as in a step of training, whose time that tells, though never more than TASKS, and GOLD for each by
    the scripted expert. ``model`` will be trained, to time an update on; without it the rate of
    params/prices.yaml is scaled. ``test`` are the tasks of that split; of a ``run`` the manifest tells what
    its stages took so far.
    """
    start = time.monotonic()
    recipe, at_once = lab.recipe, min(lab.recipe.prompts_per_step, TASKS)
    chosen = evenly(tasks, looked_at(recipe, len(tasks)))
    enough = [_memory(recipe, model)] if model is not None else []
    if any(item.light == "red" for item in enough) and recipe.preflight == "refuse":
        return Preflight(tuple(enough), 0, time.monotonic() - start), []
    options = lab.options(seed=recipe.seed)
    told = options | {"progress": "preflight" if progress else None}
    sampled, seconds = _timed(recipe, policy, chosen, at_once, told)
    golden, cached = _by_expert(_gold(tasks, len(chosen)), policy, options)
    update, device, as_trained = None, "", None
    if model is not None:
        device = "GPU" if model.device.type == "cuda" else "CPU"
        policy.sleep()  # as in training: an update has the memory to itself
        update = update_seconds(model, sampled, recipe)
        as_trained = causes.sampler(model, sampled, recipe.temperature)
    decode = exact_decode(policy.tokenizer)
    scored = report(recipe, sampled, golden, tasks, lab.reward, n_test=len(test), decode=decode)
    before = (
        causes.verifier(chosen, lab.environments),
        cached,
        task_checks.given_away(chosen),
        task_checks.held_out(tasks, test),
        as_trained,
    )
    expected = forecast(recipe, seconds, update, device, len(test), run)
    items = (*filter(None, before), *scored.items, *enough, expected)
    return Preflight(items, len(sampled), time.monotonic() - start), lab.score(chosen, sampled)


def before_training(lab: Lab, run: Run | None, say: Callable[[str], None]) -> Preflight:
    """The report outside a notebook: on the tasks and the cold start of a run, where there is one."""
    if lab.recipe.shard:
        raise RecipeError("this loads one card, and the model takes several: notebook 03 examines it")
    suite = lab.load(run) if run else lab.without_long_prompts(lab.suite())
    lab = lab.planned(suite)
    with suppress(RecipeError):  # as notebook 03 places it, where this machine has the cards
        lab = replace(lab, recipe=Work(lab, run).recipe)
    tasks, recipe = lab.train_tasks(suite), lab.recipe
    say(f"{looked_at(recipe, len(tasks)) * recipe.group_size} rollouts of the starting policy ...")
    cold_start = [run.file("sft")] if run and recipe.sft and run.file("sft").exists() else []
    model, tokenizer = load_agent(recipe.model, cold_start, None, recipe.precision, recipe.chat)
    policy = make_policy(model, tokenizer, "sft", recipe)
    options = {"model": model, "progress": sys.stderr.isatty(), "run": run, "test": suite.split("test")}
    return examine(lab, policy, tasks, **options)[0]


def looked_at(recipe: Recipe, n_tasks: int) -> int:
    """How many of so many training tasks are rolled out: TASKS or more, in whole steps of at most TASKS."""
    at_once = min(recipe.prompts_per_step, TASKS)
    n = min(math.ceil(TASKS / at_once) * at_once, n_tasks)
    return n // at_once * at_once or n


def _gold(tasks: Sequence[Task], n: int) -> list[Task]:
    """``n`` tasks with a plan, spread over them, and those behind them in the list."""
    planned = [task for task in tasks if task.meta.get("plan") is not None]
    places = {first + k: None for first in evenly(range(len(planned)), n) for k in range(GOLD)}
    return [planned[place] for place in places if place < len(planned)]


def _timed(
    recipe: Recipe, policy: Policy, tasks: Sequence[Task], at_once: int, options: dict[str, Any]
) -> tuple[list[Trajectory], float]:
    """The policy's rollouts, ``at_once`` tasks after another, and the seconds that one took of one device."""
    start = time.monotonic()
    roll = partial(rollout, policy=policy, group_size=recipe.group_size, **options)
    parts = [tasks[first : first + at_once] for first in range(0, len(tasks), at_once)]
    sampled = [t for part in parts for t in spread(roll, part, recipe.group_size)]
    return sampled, (time.monotonic() - start) * min(world(), at_once) / len(sampled)


def _by_expert(
    planned: Sequence[Task], policy: Policy, options: dict[str, Any]
) -> tuple[list[Trajectory], Item | None]:
    """The expert's trajectories, and whether those that the tool cache served come out alike without it."""
    expert = ScriptedPolicy(policy.tokenizer, name="gold")
    expert.max_length = policy.max_length
    golden = rollout(planned, expert, **options) if planned else []
    reused = [i for i, t in enumerate(golden) if any(result.cached for result in results_of(t))]
    if not reused:
        return golden, None
    again = rollout([planned[i] for i in reused], expert, **options | {"tool_cache": None})
    return golden, causes.cache([golden[i] for i in reused], again)


def _memory(recipe: Recipe, model: Any) -> Item:
    """Whether this machine holds the training; the plan is made on tensors without content."""
    device = model.device.type
    try:
        made = memory.plan(recipe, model.dtype, model.config, device)
    except RecipeError as error:
        return Item("Memory", "amber", f"{error}.", "Watch the memory of the first step.")
    return checks.memory(
        made, slot_cache.memory_of(model.device) / memory.GB, "GPU" if device == "cuda" else "machine"
    )


def report(
    recipe: Recipe,
    sampled: Sequence[Trajectory],
    golden: Sequence[Trajectory],
    tasks: Sequence[Task],
    reward: Reward,
    *,
    n_test: int = 0,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Preflight:
    """The report on recorded groups and gold trajectories with verdicts: everything but the forecast."""
    start = time.monotonic()
    shifted = [[replace(t, seed=t.seed + i * SHIFT) for t in sampled] for i in range(REPEATS)]
    scorings = [score_all(tasks, trajectories, reward) for trajectories in shifted]
    unscored, golden = golden, score_all(tasks, golden, reward)
    groups = groups_by_task(scorings[0])
    by_id = {task.id: task for task in tasks}
    right = [t for t in golden if t.success == 1.0]
    tried = {by_id[t.task_id].family for t in right}  # a family without plans has no gold
    untried = [t for t in scorings[0] if by_id[t.task_id].family not in tried]
    tried_on = _some([(by_id[t.task_id], t) for t in (*right, *untried)])
    probed_on = [(task, t if t.success == 1.0 else righted(task, t)) for task, t in tried_on]
    probed = {
        name: Probed((), (), ("what the environment saw",))
        if getattr(component, "is_read", False)
        else probe(component, probed_on, tasks)
        for name, (component, _) in reward.items()
    }
    own = reward.keys()  # what an environment gives itself cannot be varied
    played = [(by_id[t.task_id], t) for t in unscored if t.success == 1.0 and not own & t.components.keys()]
    being_right = reward_checks.being_right(reward, _some(played))
    gold = (
        reward_checks.gold(golden, groups, reward, being_right.values),
        *(reward_checks.component(name, reward, groups, golden, probed[name]) for name in reward),
    )
    items = (
        checks.settings(recipe),
        causes.limits(golden, recipe),
        causes.tools_as_planned(golden, by_id),
        *((being_right, *gold) if being_right.values["culprit"] else (*gold, being_right)),
        checks.scoring_noise(scorings, recipe.advantage),
        checks.success(groups, golden),
        checks.dead_groups(groups, recipe.group_size, partial(teaches_nothing, by_id, reward, recipe)),
        checks.silence(groups),
        checks.tools(groups),
        checks.masks(groups, decode),
        checks.power(groups, n_test, recipe.test_samples),
    )
    return Preflight(items, len(sampled), time.monotonic() - start)


def _some(played: Sequence[tuple[Task, Trajectory]]) -> list[tuple[Task, Trajectory]]:
    """A few of tasks with trajectories, at least one of each family."""
    nth, turns = Counter(), []
    for task, t in played:
        nth[task.family] += 1
        turns.append((nth[task.family], task, t))
    first = [(task, t) for turn, task, t in sorted(turns, key=lambda own: own[0])]
    return first[: max(PROBED, len(nth))]


FIRST = 8  # training tasks whose groups are shown
SHOWN = ".first_groups.parquet"  # in the run's folder


def first_look(work: Work) -> tuple[list[Trajectory], Preflight | None]:
    """Groups of the first training tasks, and the report where the recipe asks for one (preflight.json)."""
    work.do("agentkit.preflight.examination:look")
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
            on_main_process(lambda: run.remove("preflight.json"))  # of another agent or reward
            return {}
        test = suite.split("test")
        report, rollouts = examine(lab, policy, tasks, model=agent, test=test, run=run, progress=True)

    def keep() -> None:
        report.save(run.file("preflight.json"))
        write_trajectories(run.file("preflight.parquet"), rollouts)

    on_main_process(keep)
    return {}
