"""Set-ups that cannot train: the planted cause is named first, and healthy ones are not refused."""

import re
from dataclasses import replace

import outsider_setups as outsider
import pytest
import shop_setups as shop

from agentkit.lab import Lab
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.preflight import Item, Preflight, examination, examine
from agentkit.recipe import Recipe
from agentkit.records import RecipeError, Score, SuiteError
from agentkit.rewards import correctness
from agentkit.tasks.family import Family
from agentkit.tools.environments import CorpusEnvironment
from agentkit.tools.runtime import tool
from agentkit.trajectories import results_of
from agentkit.verifiers import KINDS


def searching(reply):
    """An environment whose search answers ``reply(query, found)``."""

    class Planted(CorpusEnvironment):
        @tool(pure=False)
        def search(self, query: str) -> str:
            """Search facts.

            Args:
                query: What to look up.
            """
            return reply(query, super().search(query))

    return Planted


def fails(query, found):
    raise RuntimeError("503 Service Unavailable")


def aged(query, found):
    """Every number another one, as of an older edition."""
    return "".join(str((int(c) + 3) % 10) if c.isdigit() else c for c in found).replace(" is ", " is not ", 1)


def numbers_only(answer, gold, **options):
    return Score(float(any(c.isdigit() for c in answer) or answer == gold), "a number")


def shared(answer, gold, **options):
    return Score(float(bool(answer) and (answer in gold or gold in answer)), "a part of it")


PLANTED = {  # name: (what is changed, words of the first red or amber item)
    "dead tool": ({"search": lambda q, f: "No results."}, "The tool search says"),
    "tool that fails": ({"search": fails}, "The tool search says"),
    "stale tool": ({"search": aged}, "The tool search says"),
    "too few turns": ({"recipe": {"max_turns": 1}}, "max_turns 1"),
    "turns cut short": ({"recipe": {"max_turn_tokens": 8}}, "max_turn_tokens 8"),
    "no learning rate": ({"recipe": {"learning_rate": 0.0}}, "learning rate is 0"),
    "reward weight 0": ({"recipe": {"reward": {"correctness": 0, "format": 0.1, "efficiency": 1}}}, "correctness alone tells right from wrong"),
    "negative weight": ({"rewards": {"mine": (correctness, -1.0)}}, "sign, or its weight's, is flipped"),
    "pays for calls": ({"rewards": {"mine": (lambda task, t: 0.2 * len(results_of(t)), 1.0)}}, "depends on being right"),
    "a price of calls": ({"rewards": {"right": (correctness, 1.0), "mine": (lambda task, t: -len(results_of(t)), 2.0)}}, "lower the weight of mine"),
    "an input never written": ({"rewards": {"right": (correctness, 1.0), "mine": (lambda task, t: 0.1 * task.meta.get("num_turns", 0), 1.0)}}, "num_turns"),
    "any number": ({"verifier": numbers_only}, "takes another number"),
    "shared substring": ({"verifier": shared}, "takes any text that holds the gold answer"),
    "never right": ({"flaws": Flaws(give_up=1.0, in_head=1.0, wrong_operation=1.0)}, "0% ["),
}  # fmt: skip


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def small(monkeypatch, caches):
    """Half of the rollouts: what is planted shows in few; and no replies of tools that earlier runs kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    monkeypatch.setattr(examination, "TASKS", 8)
    monkeypatch.setattr(examination, "GOLD", 2)


def examined(suite, tokenizer, search=None, recipe=None, rewards=None, verifier=None, flaws=None):
    values = Recipe(group_size=4, model="nano")
    lab = Lab.open(values.but(**(recipe or {}), **({"reward": "none"} if rewards else {})))
    if search:
        family = Family(environment=lambda: searching(search)(top_k=values.top_k))
        lab = lab.extended(families=dict.fromkeys("AB", family))
    if rewards:
        lab = replace(lab, own_rewards=rewards)
    tasks = [t for t in suite.split("train") if t.family in "AB" and len(t.meta["plan"]) > 1]
    tasks = [t for t in tasks if t.answer[:1].isdigit()] if verifier is numbers_only else tasks
    if verifier:
        tasks = [replace(t, verifier={"kind": "planted"}) for t in tasks]
    policy = ScriptedPolicy(tokenizer, flaws or Flaws(wrong_operation=0.5, skip_lookup=0.3), name="sft")
    return examine(lab, policy, tasks, test=suite.split("test"))[0]


def first(preflight):
    """What the report names first: its first red item, else its first amber one."""
    light = "red" if preflight.causes else "amber"
    return next((f"{i.finding} {i.advice}" for i in preflight.items if i.light == light), "nothing")


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_is_named_first(name, suite, tokenizer, monkeypatch):
    changes, words = PLANTED[name]
    monkeypatch.setitem(KINDS, "planted", changes.get("verifier"))
    preflight = examined(suite, tokenizer, **changes)
    assert words in first(preflight), preflight.text()


HEALTHY = {
    "the tool-call reward": {"recipe": {"reward": "tcr"}},
    "a clumsy one": {"flaws": Flaws(malformed=0.3, wrong_operation=0.7)},
    "tools that fail for the moment": {"recipe": {"tool_failures": 0.2}},
    "right and brief": {"rewards": {"right": (correctness, 1.0), "brief": (lambda task, t: -len(t.turns) / 50, 1.0)}},
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_set_ups_are_not_refused(name, suite, tokenizer):
    preflight = examined(suite, tokenizer, **HEALTHY[name])
    assert not preflight.causes, preflight.text()


class Careless(ScriptedPolicy):
    """The erring expert, who knows the plans of the sound desk where given tasks have none."""

    def __init__(self, tokenizer, known):
        super().__init__(tokenizer, Flaws(wrong_operation=0.4, skip_lookup=0.3, in_head=0.1), name="sft")
        self.known = known

    async def sample(self, request):
        task = self.known.get(request.task.prompt, request.task)
        if task.meta.get("plan") == [] and request.seed[2] % 2:  # without tools, every second answer is wrong
            task = replace(task, answer="0")
        return await super().sample(replace(request, task=task))


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Plans by question, of the labs that the set-ups change."""
    tasks = []
    for family, text in (("desk", outsider.DESK), ("shop", shop.SHOP)):
        path = tmp_path_factory.mktemp(family) / "lab.py"
        path.write_text(text)
        tasks += Lab.open(outsider.RECIPE | {"families": family, "lab": str(path)}).suite()
    return {task.prompt: task for task in tasks}


def looked_at(setup, folder, tokenizer, known):
    """The report; or why there is nothing to report on."""
    try:
        lab = Lab.open(setup.write(folder))
        suite = lab.suite()
    except (RecipeError, SuiteError) as error:
        return Preflight((Item("Suite", "red", str(error)),), 0, 0.0)
    policy = Careless(tokenizer, known)
    return examine(lab, policy, lab.train_tasks(suite), test=suite.split("test"))[0]


MISTAKES = outsider.PLANTED | shop.PLANTED
SOUND = outsider.SOUND | shop.SOUND


@pytest.mark.parametrize("name", MISTAKES)
def test_what_an_outsider_planted_is_named_first(name, tmp_path, tokenizer, known):
    preflight = looked_at(MISTAKES[name], tmp_path, tokenizer, known)
    assert re.search(MISTAKES[name].cause, first(preflight)), preflight.text()


@pytest.mark.parametrize("name", SOUND)
def test_sound_set_ups_of_an_outsider_are_not_refused(name, tmp_path, tokenizer, known):
    preflight = looked_at(SOUND[name], tmp_path, tokenizer, known)
    assert not preflight.causes, preflight.text()
