"""The lab: the one place where tasks, environments, verifiers and rewards come from, shipped ones and a
user's own, and what a user adds to the training.

Notebooks, commands, child processes and sweeps open the same lab from the same recipe, so that what a user's
lab file defines is there in each of them. Leaves out the numbers (recipe) and what is done with it all
(rollouts, training, evaluation).
"""

import os
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Self, get_args

import pandas as pd

from agentkit import verifiers
from agentkit.diagnostics.rules import Rule
from agentkit.evaluation import Comparison, Samples, compare_by
from agentkit.recipe import Advantage
from agentkit.records import Step, Task, Trajectory
from agentkit.rewards import Reward, check_reward, from_recipe, of_environments, score_all
from agentkit.rollouts import Limits, fork, prompt_lengths, rollout
from agentkit.rollouts.policy import Policy
from agentkit.runs import (
    SPLITS,
    Recipe,
    RecipeError,
    Run,
    find_file,
    read_json,
    user_cache,
    write_json,
    write_trajectories,
)
from agentkit.runs.labfile import blame, lab_digest, load_module, with_sources
from agentkit.tasks import Suite, SuiteError, shipped_families
from agentkit.tasks.expert import wrong_plans
from agentkit.tasks.family import Family, Measure, with_content_id
from agentkit.tasks.pass_rates import learnable, pass_rates, with_pass_rates
from agentkit.tasks.public import hub, public_families
from agentkit.tasks.splits import a_fifth, assign_splits
from agentkit.tasks.suite import family_names, that_can_be_judged
from agentkit.tools.cache import ToolCache
from agentkit.tools.corpus import Corpus
from agentkit.tools.runtime import example, tool_schemas, tools_of
from agentkit.training.own import counts, estimators, rules

NAMES = (
    "families",
    "verifiers",
    "rewards",
    "advantages",
    "columns",
    "alarms",
)  # what a lab file may define, each a dictionary
PASS_RATES = "pass_rates.json"  # of the training tasks, where they are filtered
SIFTED = 256  # tasks at the most whose trajectories are held at a time
Factory = Callable[[], object]


class _Environments(dict):
    """Environments by family; one that is not known is an error, never a default."""

    def __missing__(self, family: str) -> Factory:
        known = ", ".join(sorted(self))
        raise RecipeError(
            f"there is no family {family!r}, so no environment for its tasks: there are {known}. "
            "Define it in the lab file (agentkit new)"
        )


@dataclass(frozen=True)
class Lab:
    """What a recipe works with. ``Lab.open`` makes one."""

    recipe: Recipe
    families: Mapping[str, Family]  # all that are known, by name
    own_families: frozenset[str] = frozenset()  # those of the lab file
    own_verifiers: Mapping[str, Callable] = field(default_factory=dict)
    own_rewards: Reward = field(default_factory=dict)
    own_advantages: Mapping[str, Callable] = field(default_factory=dict)
    own_columns: Mapping[str, Callable[[Step], float]] = field(default_factory=dict)
    own_alarms: tuple[Rule, ...] = ()
    path: Path | None = None  # the lab file
    digest: str = ""  # of the lab file and the modules beside it that it imports
    added: frozenset[str] = frozenset()  # by ``extended``, of which no other process knows

    @classmethod
    def open(cls, recipe: Recipe | Mapping[str, Any] | str | Path) -> Self:
        """The lab of a recipe, given as a Recipe, its keys, or the path of its YAML.

        Raises:
            RecipeError: the recipe or its lab file cannot be used; the message says what to mend.
        """
        if isinstance(recipe, str | Path):
            recipe = Recipe.load(recipe)
        elif not isinstance(recipe, Recipe):
            recipe = Recipe.from_mapping(recipe)
        _check_reporter(recipe.report_to)
        families = shipped_families(Corpus(), recipe.top_k) | public_families(recipe.top_k)
        if not recipe.lab:
            return cls(recipe, families)._checked()
        path = find_file(recipe.lab)
        module = load_module(path)
        own = {name: _dictionary(module, name, path) for name in NAMES}
        if not any(own.values()):
            raise RecipeError(
                f"{path} defines none of {', '.join(NAMES)}: give at least one of these dictionaries"
            )
        _check_own(own, path)
        lab = cls(
            recipe, families | own["families"], frozenset(own["families"]), own["verifiers"], own["rewards"],
            estimators(own["advantages"], path), counts(own["columns"], path), rules(own["alarms"], path),
            path, lab_digest(path),
        )  # fmt: skip
        return lab._checked()

    def _checked(self) -> Self:
        """This lab. Raises RecipeError where the recipe names an advantage or a reward that is not there."""
        known = (*get_args(Advantage), *self.own_advantages)
        if self.recipe.advantage not in known:
            raise RecipeError(f"advantage is {self.recipe.advantage[:60]!r}; there are {', '.join(known)}")
        if isinstance(self.recipe.reward, dict):
            self.reward  # noqa: B018 - raises
        return self

    @classmethod
    def of(cls, run: Run) -> Self:
        """The lab that a run was made with, from the recipe in its manifest."""
        return cls.open(Recipe.of(run))

    def extended(self, families: Mapping[str, Family] | None = None, rewards: Reward | None = None) -> Self:
        """This lab with more families or rewards, to try out in a notebook: no other process knows them."""
        more, own = dict(families or {}), dict(rewards or {})
        check_reward(own)
        return replace(
            self,
            families={**self.families, **more},
            own_families=self.own_families | set(more),
            own_rewards={**self.own_rewards, **own},
            digest=with_sources(self.digest, [function for function, _ in own.values()]),
            added=self.added | set(more) | set(own),
        )

    @cached_property
    def environments(self) -> Mapping[str, Factory]:
        """One environment for each trajectory of a family; a family that is not known raises RecipeError."""
        return _Environments({name: family.environment for name, family in self.families.items()})

    @cached_property
    def reward(self) -> Reward:
        """The recipe's preset, the lab file's components, and the rewards of its own environments."""
        asked = of_environments({f: self.families[f].environment for f in sorted(self.own_families)})
        return from_recipe(self.recipe, {**self.own_rewards, **asked})

    def suite(self) -> Suite:
        """The recipe's suite; a warning names system prompts that ask for no answer the verifiers can read.

        Raises:
            SuiteError, RunError: it cannot be built, or read.
        """
        suite = self._suite()
        for family in sorted({t.family for t in suite if verifiers.reads_by_protocol(t)} & self.own_families):
            prompt = getattr(example(self.families[family].environment), "system_prompt", None)
            if isinstance(prompt, str) and not verifiers.asks_for_answer(prompt):
                warnings.warn(
                    f"the system prompt of family {family!r} asks for no last line 'Answer: ...' and no "
                    "\\boxed{...}, so its verifier will find few answers: ask for one, or give the verifier "
                    'the option box: "sentence"',
                    stacklevel=2,
                )
        return suite

    def _suite(self) -> Suite:
        """The suite: built from its families, or read from its ``tasks``, a file or a public data
        set (``gsm8k``, or ``gsm8k:FILE`` for local rows of it), and split where they are not.
        """
        recipe = self.recipe
        if recipe.tasks and recipe.new_templates:
            raise SuiteError(
                "new_templates holds kinds of questions out of a suite that is built; tasks names one, "
                "whose splits say what is held out: give one of the two"
            )
        name, _, file = recipe.tasks.partition(":")
        if name in hub.SOURCES:
            place = file and (file if os.path.isdir(file) else find_file(file))
            tasks, broken = hub.load(name, place or None, limit=recipe.n_tasks)
            if broken:
                warnings.warn(f"{len(broken)} rows left out: {broken[0]}", stacklevel=2)
            return self.adopt(Suite(tasks))
        if recipe.tasks:
            return self.adopt(Suite.load(find_file(recipe.tasks)))
        spec = {"families": recipe.families, "n_tasks": recipe.n_tasks, "seed": recipe.suite_seed}
        spec["new_templates"] = recipe.new_templates
        return Suite.build(spec, families={name: self.families[name] for name in self._asked()})

    def _asked(self) -> list[str]:
        return family_names(self.recipe.families, self.families)

    def adopt(self, suite: Suite) -> Suite:
        """Tasks from elsewhere as a suite of this lab: content ids, known families, three splits.

        Raises:
            RecipeError: tasks of a family that is not known.
            SuiteError: two that are the same.
        """
        suite = that_can_be_judged(list(suite))
        usual = Task.__dataclass_fields__["tools"].default
        held = {f: tuple(tools_of(example(self.environments[f]))) for f in {t.family for t in suite}}
        unlike = {family for family, tools in held.items() if not set(usual) <= set(tools)}
        tasks = [
            with_content_id(
                replace(t, tools=held[t.family]) if t.tools == usual and t.family in unlike else t
            )
            for t in suite
        ]
        first: dict[str, str] = {}
        for task, given in zip(tasks, suite, strict=True):
            if task.id in first:
                raise SuiteError(
                    f"two of the tasks, {first[task.id][:60]!r} and {given.id[:60]!r}, are the same in "
                    "family, prompt, answer, verifier and meta: keep one"
                )
            first[task.id] = given.id
        present = {task.split for task in tasks}
        rng = random.Random(f"{self.recipe.suite_seed}-splits")
        if len(present) == 1:
            tasks = assign_splits(tasks, rng)
        elif "validation" not in present:
            held = a_fifth([task for task in tasks if task.split == "train"], rng)
            tasks = [replace(task, split="validation") if task.id in held else task for task in tasks]
        if empty := sorted(set(SPLITS) - {task.split for task in tasks}):
            raise SuiteError(
                f"no task is in the split {empty[0]}: name train, validation and test, or one split for all, "
                "which is then divided; and give more tasks where they are few, or vary those that ask "
                "nearly the same or share their entities, which are kept together"
            )
        return Suite(tasks, self.environments)

    def check_plans(self, suite: Suite) -> None:
        """Raise SuiteError where plans of a given suite lead to no right answer; a built one was solved."""
        if self.recipe.tasks and (wrong := wrong_plans(suite, self.environments)):
            raise SuiteError(
                f"the plans of {len(wrong)} of {len(suite)} tasks do not lead to their answers "
                f"({'; '.join(row['why'] for row in wrong[:3])}). Mend these meta['plan'], or leave them out"
            )

    def check_apart(self, suite: Suite) -> None:
        """Whether training shares no entity combination with validation and test; of a given suite only a
        warning says so.

        Raises:
            SuiteError: two tasks of a suite that is built do.
        """
        trained = {frozenset(task.meta.get("entities") or [task.id]): task for task in suite.split("train")}
        for task in [*suite.split("validation"), *suite.split("test")]:
            if one := trained.get(frozenset(task.meta.get("entities", []))):
                pair = f"{one.prompt[:60]!r} (train) and {task.prompt[:60]!r} ({task.split})"
                said = f"{pair} share their entities"
                if not self.recipe.tasks:
                    raise SuiteError(said)
                warnings.warn(f"{said}, so that the one may teach the other", stacklevel=2)
                return

    def load(self, run: Run) -> Suite:
        """The suite of a run, with this lab's environments behind it, without prompts that are too long.

        Where ``sift`` has rolled its training tasks out, they say how often they were solved.
        """
        suite = self.without_long_prompts(Suite(run.tasks, self.environments))
        if self.recipe.filter_rollouts and run.file(PASS_RATES).exists():
            suite = with_pass_rates(suite, read_json(run.file(PASS_RATES)))
        return suite

    def without_long_prompts(self, suite: Suite) -> Suite:
        """The suite without prompts of more than ``max_prompt_tokens``, and a warning that says how many."""
        recipe, limit = self.recipe, self.recipe.max_prompt_tokens
        if not limit:
            return suite
        from agentkit.policies.loading import load_tokenizer  # loads torch

        lengths = prompt_lengths(suite.tasks, load_tokenizer(recipe.model, recipe.chat), self.environments)
        kept = [task for task in suite if lengths[task.id] <= limit]
        if empty := [name for name in SPLITS if not any(task.split == name for task in kept)]:
            raise SuiteError(f"no prompt in {empty[0]} has max_prompt_tokens {limit} or less: raise it")
        if long := [task.id for task in suite if lengths[task.id] > limit]:
            warnings.warn(
                f"{len(long)} of {len(suite)} tasks are left out, whose prompts have more than "
                f"max_prompt_tokens {limit}, such as {long[0]} with {lengths[long[0]]}",
                stacklevel=3,
            )
        return Suite(kept, self.environments)

    def sift(self, run: Run, policy: Policy, suite: Suite) -> str:
        """Roll a policy out on the training tasks, ``filter_rollouts`` times each, and keep their pass rates.

        A sentence says how many of them ``train_tasks`` will leave out, as GRPO-TCR does (tasks.pass_rates).
        """
        count, tasks = self.recipe.filter_rollouts, suite.split("train")
        _on_main_process(lambda: run.file(PASS_RATES).unlink(missing_ok=True))  # of another policy
        if not count:
            return "filter_rollouts is 0: no training task is left out"
        options = self.options(seed=self.recipe.seed, group_size=count)
        rates: dict[str, float] = {}
        for start in range(0, len(tasks), SIFTED):
            some = tasks[start : start + SIFTED]
            options["progress"] = f"{policy.name}, training tasks {start + 1} to {start + len(some)}"
            rates |= pass_rates(_rollout(some, policy, **options))  # tasks without a verdict stay
        _on_main_process(lambda: write_json(run.file(PASS_RATES), rates))
        never, always = (sum(rate == bound for rate in rates.values()) for bound in (0.0, 1.0))
        return f"of {len(rates)} training tasks, {never} are never and {always} always solved, and left out"

    def train_tasks(self, suite: Suite) -> list[Task]:
        """The tasks that GRPO trains on: of split train, of ``train_difficulty``, and not sifted out."""
        levels = self.recipe.train_difficulty
        tasks = [task for task in suite.split("train") if not levels or task.difficulty in levels]
        if not tasks:
            raise RecipeError(
                f"no training task is {', '.join(levels) or 'there'}: set train_difficulty anew"
            )
        return learnable(tasks) if self.recipe.filter_rollouts else tasks

    def planned(self, suite: Suite) -> Self:
        """This lab with the recipe's ``epochs`` over the suite's training tasks as steps."""
        return replace(self, recipe=self.recipe.planned(len(self.train_tasks(suite))))

    def options(self, **changes: Any) -> dict[str, Any]:
        """What the recipe and the lab say about rollouts, as keyword arguments of ``rollout``."""
        recipe = self.recipe
        limits = Limits(
            recipe.max_turns,
            recipe.max_turn_tokens,
            recipe.max_tokens,
            tool_timeout_s=recipe.tool_timeout_s,
            trajectory_timeout_s=recipe.trajectory_timeout_s,
            max_observation=recipe.max_observation,
        )
        return {
            "environment": self.environments,
            "temperature": recipe.temperature,
            "limits": limits,
            "tool_failures": recipe.tool_failures,
            "tool_cache": ToolCache(user_cache("tools.sqlite")),
        } | changes

    def policy(self, run: Run | None = None, name: str = "base") -> Policy:
        """A policy of a run, "base", "sft", "grpo" or a control; without a run the model as it is.

        Close it, or use it in a ``with``. Raises RunError where the run has no such policy.
        """
        from agentkit.policies.loading import agent_of, load_agent, make_policy  # load torch

        recipe = self.recipe
        if run is None:
            return make_policy(
                *load_agent(recipe.model, precision=recipe.precision, chat=recipe.chat), name, recipe
            )
        return make_policy(*agent_of(run, recipe, name), name, recipe)

    def rollout(self, tasks: Sequence[Task], policy: Policy, **changes: Any) -> list[Trajectory]:
        """Trajectories of a policy, scored; ``changes`` are arguments of ``agentkit.rollout``."""
        options = {"seed": self.recipe.seed} | self.options(**changes)
        return self.score(tasks, _rollout(tasks, policy, **options))

    def fork(
        self, task: Task, trajectory: Trajectory, turn: int, policy: Policy, **changes: Any
    ) -> list[Trajectory]:
        """Continuations of a trajectory from a turn, scored; ``changes`` are arguments of ``fork``."""
        options = {"task": task, "seed": self.recipe.seed} | self.options(**changes)
        found = fork(trajectory, turn, policy, **options)
        return self.score([task], found)

    def score(self, tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories with this lab's reward; their verdicts stay."""
        return score_all(tasks, trajectories, self.reward)

    def measure(self, run: Run, policy: Policy, tasks: Sequence[Task]) -> list[Trajectory]:
        """Roll a policy out on tasks, ``test_samples`` times each, and store it as eval/<name>.parquet.

        Every policy meets the same tasks with the same random numbers, so that comparisons are paired.
        Verdicts only: a reward is given where policies are compared, so that another reward repeats no
        measurement.
        """
        changes = {"group_size": self.recipe.test_samples, "progress": f"{policy.name}, test"}
        options = self.options(seed=self.recipe.seed, **changes)
        measured = _rollout(tasks, policy, **options)
        path = run.file("eval", f"{policy.name}.parquet")
        _on_main_process(partial(write_trajectories, path, measured))
        return measured

    def rewarded(self, run: Run, name: str, tasks: Sequence[Task]) -> list[Trajectory]:
        """The measured trajectories of a policy with this lab's reward, which are stored in their place."""
        held = run.trajectories(name)  # perhaps with another reward's components
        own = [
            replace(t, components={n: v for n, v in t.components.items() if n in self.reward}) for t in held
        ]
        scored = self.score(tasks, own)
        write_trajectories(run.file("eval", f"{name}.parquet"), scored)
        return scored

    def compare_by_family(
        self, policies: Mapping[str, Samples], tasks: Sequence[Task]
    ) -> dict[str, Comparison]:
        """What the families of these tasks measure beside success, a comparison each; most nothing.

        Families that share a measure are compared by it together.
        """
        shared: dict[tuple[str, Measure], list[str]] = {}
        for family in dict.fromkeys(task.family for task in tasks):
            for named in self.families[family].measures.items():
                shared.setdefault(named, []).append(family)
        found: dict[str, Comparison] = {}
        for (name, measure), families in shared.items():
            own = [task for task in tasks if task.family in families]
            key = f"{families[0]}: {name}" if name in found else name
            try:
                found[key] = compare_by(measure, policies, own)
            except Exception as error:  # a family's own, or it says nothing of a policy
                warnings.warn(f"the measure {key!r} is left out: {blame(error)}", stacklevel=2)
        return found

    def trainer(
        self,
        model: Any,
        tokenizer: Any,
        suite: Suite,
        run: Run,
        on_metrics: Callable[[dict[str, Any]], None] | None = None,
    ) -> Any:
        """A training.loop.GRPO for the suite's training and validation tasks; ``train()`` runs it."""
        from agentkit.training.loop import GRPO  # loads torch

        tasks, validation = self.train_tasks(suite), suite.split("validation")
        return GRPO(self, model, tokenizer, tasks, validation, run, on_metrics=on_metrics)

    def check_for_children(self) -> None:
        """Raise RecipeError where something was added in a notebook, which no other process sees."""
        if self.added:
            raise RecipeError(
                f"{', '.join(sorted(self.added))} would be missing in the training processes, which open the "
                "recipe's lab file: put it there (agentkit new mine), not into lab.extended"
            )

    def contents(self) -> pd.DataFrame:
        """What the lab holds, a row a part: what it is, its name, and what it does."""
        named = self._asked() if not self.recipe.tasks else []
        tools = {
            name: ", ".join(tools_of(example(self.families[name].environment))) or "no tools"
            for name in [*named, *sorted(self.own_families - set(named))]
        }
        mine = self.path.name if self.path else "this notebook"
        rows = [
            ("family", name, what, mine if name in self.own_families else "agentkit")
            for name, what in tools.items()
        ]
        rows += [("verifier", name, _first_line(f), mine) for name, f in self.own_verifiers.items()]
        rows += [
            (
                "reward",
                name,
                f"weight {weight:g}: {_first_line(f)}",
                mine if name in self.own_rewards else "agentkit",
            )
            for name, (f, weight) in self.reward.items()
        ]
        rows += [("advantage", name, _first_line(f), mine) for name, f in self.own_advantages.items()]
        rows += [("column", name, _first_line(f), mine) for name, f in self.own_columns.items()]
        rows += [("alarm", rule.alarm, rule.cause, mine) for rule in self.own_alarms]
        return pd.DataFrame(rows, columns=["", "name", "what it is", "from"]).set_index("")

    def __repr__(self) -> str:
        return f"The lab\n{self.contents().to_string(max_colwidth=80)}"


def _is_alone() -> bool:
    """Whether no other process can do this job, which is known without torch."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def _on_main_process(work: Callable[[], Any]) -> None:
    """Do something in the first process only, where several do this job."""
    if _is_alone():
        work()
        return
    from agentkit.policies.process_group import on_main_process  # loads torch

    on_main_process(work)


def _rollout(tasks: Sequence[Task], policy: Policy, **options: Any) -> list[Trajectory]:
    """``rollout``, spread over the processes where several do this job."""
    if _is_alone():
        return rollout(tasks, policy, **options)
    from agentkit.policies.process_group import spread  # loads torch

    return spread(partial(rollout, policy=policy, **options), tasks, options.get("group_size", 1))


def _check_reporter(name: str) -> None:
    """Raise RecipeError where the package that ``report_to`` asks for cannot be imported."""
    packages = ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)
    found = filter(None, map(find_spec, packages))  # a folder of logs that is called wandb has no origin
    if name != "none" and not any(spec.origin for spec in found):
        raise RecipeError(
            f"report_to: {name} needs the package {name}, which is not installed: pip install {name}, or "
            "set report_to to none"
        )


def _dictionary(module: ModuleType, name: str, path: Path) -> dict[str, Any]:
    value = getattr(module, name, {})
    if not isinstance(value, dict) or not all(isinstance(key, str) and key for key in value):
        raise RecipeError(
            f"{path}: {name} must be a dictionary with names as keys, such as {name} = {{'mine': ...}}"
        )
    return dict(value)


def _check_own(own: dict[str, dict[str, Any]], path: Path) -> None:
    """Register the verifiers; raise RecipeError for a part of a lab file that is not what it should be."""
    for name, family in own["families"].items():
        if not isinstance(family, Family):
            raise RecipeError(
                f"{path}: families[{name!r}] is of type {type(family).__name__}; give a Family(draft, ..)"
            )
        try:
            environment = example(family.environment)
            tool_schemas(environment)
            environment.reset  # noqa: B018 - raises where there is none
        except Exception as error:
            raise RecipeError(
                f"{path}: the environment of family {name!r} cannot be used: {blame(error)}"
            ) from error
    try:
        check_reward(own["rewards"])
        verifiers.register(own["verifiers"])
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from None


def _first_line(thing: Any) -> str:
    lines = (getattr(thing, "__doc__", None) or "").strip().splitlines()
    return lines[0] if lines else ""
