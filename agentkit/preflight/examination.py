"""The examination of a run before it starts: rollouts, scorings, the expert's, and all checks of them.

Leaves out what each check looks at (checks, causes, reward_checks) and forecasting.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from agentkit.lab import Lab
from agentkit.policies import slot_cache
from agentkit.policies.loading import agent_of, load_agent, make_policy
from agentkit.policies.process_group import on_main_process, spread, world
from agentkit.policies.scripted import ScriptedPolicy
from agentkit.preflight import causes, checks, reward_checks
from agentkit.preflight.forecasting import forecast
from agentkit.preflight.probe import Probed, probe, righted
from agentkit.preflight.report import Item, Preflight
from agentkit.records import RecipeError, Task, Trajectory
from agentkit.rewards import Reward, is_read, score_all
from agentkit.rollouts import rollout
from agentkit.rollouts.policy import Policy
from agentkit.rollouts.tokens import exact_decode
from agentkit.runs import Recipe, Run, read_json, read_trajectories, write_json, write_trajectories
from agentkit.training import memory
from agentkit.training.advantages import teaches_nothing
from agentkit.training.launch import Work
from agentkit.training.selection import spread_over
from agentkit.training.update_timing import update_seconds
from agentkit.trajectories import groups_by_task, verifier_kind
from agentkit.verifiers import judges_state

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

    Where memory does not suffice, nothing is. Else TASKS of them, spread over the list, and GOLD for each by
    the scripted expert. ``model`` will be trained, to time an update on; without it the rate of
    params/prices.yaml is scaled. ``test`` are the tasks of that split; of a ``run`` the manifest tells what
    its stages took so far.
    """
    start, recipe = time.monotonic(), lab.recipe
    enough = [_memory(recipe, model)] if model is not None else []
    if any(item.light == "red" for item in enough) and recipe.preflight == "refuse":
        return Preflight(tuple(enough), 0, time.monotonic() - start), []
    chosen, options = spread_over(tasks, TASKS), lab.options(seed=recipe.seed)
    shown = options | {"progress": "preflight" if progress else None}
    roll = partial(rollout, policy=policy, group_size=recipe.group_size, **shown)
    sampled = spread(roll, chosen, recipe.group_size)
    seconds = (time.monotonic() - start) * min(world(), len(chosen)) / len(sampled)  # of one device
    golden = _by_expert(tasks, len(chosen), policy, options)
    update, device = None, ""
    if model is not None:
        device = "GPU" if model.device.type == "cuda" else "CPU"
        policy.sleep()  # as in training: an update has the memory to itself
        update = update_seconds(model, sampled, recipe)
    decode = exact_decode(policy.tokenizer)
    about = {"n_test": len(test), "decode": decode, "own": lab.own_advantages}
    scored = report(recipe, sampled, golden, tasks, lab.reward, **about)
    items = (
        causes.verifier(chosen, lab.environments),
        causes.given_away(chosen),
        causes.held_out(tasks, test),
        *scored.items,
        *enough,
        *([forecast(recipe, seconds, update, device, len(test), run)] if recipe.can_train else []),
    )
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
    say(f"{min(TASKS, len(tasks)) * recipe.group_size} rollouts of the starting policy ...")
    cold_start = [run.file("sft")] if run and recipe.sft and run.file("sft").exists() else []
    model, tokenizer = load_agent(recipe.model, cold_start, None, recipe.precision, recipe.chat)
    policy = make_policy(model, tokenizer, "sft", recipe)
    options = {"model": model, "progress": sys.stderr.isatty(), "run": run, "test": suite.split("test")}
    return examine(lab, policy, tasks, **options)[0]


def _by_expert(tasks: Sequence[Task], n: int, policy: Policy, options: dict[str, Any]) -> list[Trajectory]:
    """The expert's trajectories of ``n`` tasks with a plan, spread over them, and of those behind them."""
    planned = [task for task in tasks if task.meta.get("plan") is not None]
    places = {first + k: None for first in spread_over(range(len(planned)), n) for k in range(GOLD)}
    chosen = [planned[place] for place in places if place < len(planned)]
    expert = ScriptedPolicy(policy.tokenizer, name="gold")
    expert.max_length = policy.max_length
    return rollout(chosen, expert, **options) if chosen else []


def _memory(recipe: Recipe, model: Any) -> Item:
    """Whether this machine holds the training; the plan is made on tensors without content."""
    device = model.device.type
    try:
        made = memory.plan(recipe, model.dtype, model.config, device)
    except RecipeError as error:
        return Item("Memory", "amber", f"{error}.", "Watch the memory of the first step.")
    place = "GPU" if device == "cuda" else "machine"
    return checks.memory(made, slot_cache.memory_of(model.device) / memory.GB, place)


def report(
    recipe: Recipe,
    sampled: Sequence[Trajectory],
    golden: Sequence[Trajectory],
    tasks: Sequence[Task],
    reward: Reward,
    *,
    n_test: int = 0,
    decode: Callable[[Sequence[int]], str] | None = None,
    own: Mapping[str, Callable] = MappingProxyType({}),
) -> Preflight:
    """The report on recorded groups and gold trajectories with verdicts: everything but the forecast.

    ``own`` are a lab's estimators of advantages.
    """
    start = time.monotonic()
    shifted = [[replace(t, seed=t.seed + i * SHIFT) for t in sampled] for i in range(REPEATS)]
    scorings = [score_all(tasks, trajectories, reward) for trajectories in shifted]
    unscored, golden = golden, score_all(tasks, golden, reward)
    groups, by_id = groups_by_task(scorings[0]), {task.id: task for task in tasks}
    names = reward.keys()  # what an environment gives itself cannot be varied
    played = [(by_id[t.task_id], t) for t in unscored if t.success == 1.0 and not names & t.components.keys()]
    being_right = reward_checks.being_right(reward, _some(played))
    probed = _probed(reward, golden, scorings[0], by_id)
    gold = (
        reward_checks.gold(golden, groups, reward, being_right.values),
        *(reward_checks.component(name, reward, groups, golden, probed[name]) for name in reward),
    )
    items = (
        checks.settings(recipe),
        causes.limits(golden, recipe),
        causes.tools_as_planned(golden, by_id),
        *((being_right, *gold) if being_right.values["names"] else (*gold, being_right)),
        checks.scoring_noise(scorings, recipe.advantage),
        checks.success(groups, golden),
        checks.dead_groups(groups, partial(teaches_nothing, by_id, reward, recipe, own=own)),
        checks.silence([g for g in groups if not judges_state(verifier_kind(by_id[g.task_id]))]),
        checks.masks(groups, decode),
        checks.power(groups, n_test, recipe.test_samples),
    )
    return Preflight(items, len(sampled), time.monotonic() - start)


def _probed(
    reward: Reward, golden: Sequence[Trajectory], sampled: Sequence[Trajectory], tasks: Mapping[str, Task]
) -> dict[str, Probed]:
    """Each component on gold trajectories, and in families without plans on rollouts made right."""
    right = [t for t in golden if t.success == 1.0]
    tried = {tasks[t.task_id].family for t in right}
    untried = [t for t in sampled if tasks[t.task_id].family not in tried]
    pairs = _some([(tasks[t.task_id], t) for t in (*right, *untried)])
    pairs = [(task, t if t.success == 1.0 else righted(task, t)) for task, t in pairs]
    read = Probed((), (), ("what the environment saw",))
    return {
        name: read if is_read(component) else probe(component, pairs, tasks.values())
        for name, (component, _) in reward.items()
    }


def _some(played: Sequence[tuple[Task, Trajectory]]) -> list[tuple[Task, Trajectory]]:
    """A few of tasks with trajectories, at least one of each family."""
    first = {pair[0].family: pair for pair in reversed(played)}
    others = [pair for pair in played if pair is not first[pair[0].family]]
    return [*first.values(), *others][: max(PROBED, len(first))]


ROLLOUTS = "preflight.parquet"  # in the run's folder


def first_look(work: Work) -> tuple[list[Trajectory], Preflight | None]:
    """Groups of some training tasks, and the report where the recipe asks for one (preflight.json).

    A report on the same parameters, files and start is kept: a training that goes on does not repeat it.
    """
    run, file = work.run, work.run.file("preflight.json")
    digest = run.manifest["stages"].get("03_grpo", {}).get("fingerprint", "")
    is_kept = bool(digest) and not work.lab.added and work.recipe.preflight != "off" and file.exists()
    if not (is_kept and read_json(file).get("digest") == digest and run.file(ROLLOUTS).exists()):
        work.do("agentkit.preflight.examination:look")
        if file.exists():
            write_json(file, read_json(file) | {"digest": digest})
    return read_trajectories(run.file(ROLLOUTS)), Preflight.load(file) if file.exists() else None


def look(lab: Lab, run: Run, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The job: in this process, or in several that each roll out a share."""
    recipe, suite = lab.recipe, lab.load(run)
    tasks = lab.train_tasks(suite)
    agent, tokenizer = agent_of(run, recipe, "sft")
    report, shown, test = None, [], suite.split("test")
    with make_policy(agent, tokenizer, "sft", recipe) as policy:
        if recipe.preflight != "off":
            report, shown = examine(lab, policy, tasks, model=agent, test=test, run=run, progress=True)
        shown = shown or lab.rollout(tasks[:TASKS], policy, group_size=recipe.group_size)

    def keep() -> None:
        write_trajectories(run.file(ROLLOUTS), shown)
        run.remove("preflight.json")  # of another agent or reward
        if report is not None:
            report.save(run.file("preflight.json"))

    on_main_process(keep)
    return {}
