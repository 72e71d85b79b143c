"""Suites: every gold answer passes and every mutated one fails, splits share nothing, seeds decide
everything.
"""

from __future__ import annotations

import collections
import hashlib
import json
import random
from functools import partial
from itertools import combinations

import pytest

from agentkit import Lab, StopReason, Suite, Task, Trajectory, verify
from agentkit.runs import task_problem
from agentkit.tasks import (
    PlanError,
    SuiteError,
    expert,
    near_duplicates,
    pass_rates,
    shipped_families,
    solve,
    splits,
)
from agentkit.tasks.families import lookup, multihop
from agentkit.tasks.family import Family, difficulty
from agentkit.tools import calculate, search_passages
from agentkit.tools.corpus import PHRASES, facts
from agentkit.tools.environments import CorpusEnvironment
from agentkit.trajectories import results_of
from agentkit.verifiers import normalize

SPEC = {"families": ["A", "B"], "n_tasks": 120, "seed": 0}


@pytest.fixture(scope="session")
def tools(corpus):
    return {"search": lambda query: search_passages(corpus, query), "calculator": calculate}


def shared(tasks: Suite) -> dict[str, set]:
    """What more than one split holds: entity pairs (or lone entities), prompts, ids."""
    seen = collections.defaultdict(set)
    for task in tasks:
        entities = sorted(set(task.meta["entities"]))
        for key in list(combinations(entities, 2)) or [tuple(entities)]:
            seen["entities", key].add(task.split)
        seen[
            "prompt", " ".join("".join(c if c.isalnum() else " " for c in task.prompt.casefold()).split())
        ].add(task.split)
        seen["id", task.id].add(task.split)
    return {key: splits for key, splits in seen.items() if len(splits) > 1}


# ---- splits
@pytest.fixture(scope="module")
def default(corpus):
    return Suite.build({"n_tasks": 300, "seed": 1}, corpus=corpus)


@pytest.mark.parametrize(("n_tasks", "seed"), [(20, 0), (50, 2), (300, 1)])
def test_splits_share_nothing_and_none_is_empty(corpus, n_tasks, seed, request):
    spec = {"n_tasks": n_tasks, "seed": seed}
    suite = request.getfixturevalue("default") if n_tasks == 300 else Suite.build(spec, corpus=corpus)
    assert len(suite) == n_tasks and shared(suite) == {}
    for name, share in splits.SPLITS.items():
        assert abs(len(suite.split(name)) - share * n_tasks) <= max(3, 0.03 * n_tasks)
    assert sum(len(suite.split(name)) for name in splits.SPLITS) == n_tasks


def test_new_templates_are_in_the_test_only_and_say_so(corpus):
    spec = {
        "families": ["A", "B"],
        "n_tasks": 120,
        "seed": 3,
        "new_templates": ["A total4", "B film.country > country.capital"],
    }
    suite = Suite.build(spec, corpus=corpus)
    new = [t for t in suite if splits.stratum(t) in ("A total4", "B film.country > country.capital")]
    assert len({splits.stratum(t) for t in new}) == 2
    assert all(t.split == "test" and t.meta["new_template"] for t in new)
    assert not any(t.meta.get("new_template") for t in suite if t not in new) and shared(suite) == {}
    plain = Suite.build(spec | {"new_templates": []}, corpus=corpus)
    assert [t.prompt for t in plain] == [t.prompt for t in suite]
    with pytest.warns(UserWarning, match="'A totall', of which no task was drafted"):
        Suite.build(spec | {"new_templates": ["A totall"]}, corpus=corpus)
    every = sorted({splits.stratum(t) for t in suite})
    with pytest.raises(SuiteError, match="none is left to train on"):
        Suite.build(spec | {"new_templates": every}, corpus=corpus)
    lab = Lab.open({"tasks": "some.jsonl", "new_templates": "A total4"})
    with pytest.raises(SuiteError, match="give one of the two"):
        lab.suite()


def together(links) -> set[frozenset[int]]:
    """The positions of prompts that links connect, however they do."""
    groups = collections.defaultdict(set)
    for i, root in enumerate(near_duplicates.joined(1 + max(map(max, links), default=0), links)):
        groups[root].add(i)
    return {frozenset(group) for group in groups.values() if len(group) > 1}


def test_near_duplicates_are_found_exactly_and_nothing_else(monkeypatch):
    rng = random.Random(0)
    words = "what is the population of a city in some far away country where nobody has ever been before now".split()
    prompts = [" ".join(rng.sample(words, rng.randint(4, 18))) for _ in range(120)]
    prompts += [prompt.replace("city", "town").upper() + "?" for prompt in prompts[:40]] + prompts[:3]

    def alike(a: str, b: str) -> float:
        one, two = (
            {*zip(["", *w], [*w, ""], strict=True)} for w in (normalize(a).split(), normalize(b).split())
        )
        return len(one & two) / len(one | two)

    for similar in (0.6, 0.85, 1.0):
        expected = {
            (i, j)
            for i, j in combinations(range(len(prompts)), 2)
            if alike(prompts[i], prompts[j]) >= similar
        }
        monkeypatch.setattr(near_duplicates, "SIMILAR", similar)
        found = list(near_duplicates.near_duplicates(prompts))
        assert set(found) <= expected and together(found) == together(expected) and expected
        assert len(found) == sum(len(group) - 1 for group in together(found)), "no more than connect them"


def test_what_most_prompts_of_a_family_say_makes_none_alike():
    """Rules of 170 words around every goal, around none, and where no goal is."""
    rules = " ".join(f"rule{i}" for i in range(170))
    goals = [f"{rules} carry box{i} to room{i} {rules}" for i in range(40)]
    prompts = [*goals, f"{goals[3].upper()}!", rules, f"{rules}."]
    assert set(near_duplicates.near_duplicates(prompts)) == {(3, 40), (41, 42)}
    others = [f"population of place{i}" for i in range(100)]
    families = ["own"] * 43 + ["A"] * 100
    assert set(near_duplicates.near_duplicates([*prompts, *others], families)) == {(3, 40), (41, 42)}
    few = list(near_duplicates.near_duplicates(goals[:19]))  # too few to tell what most say
    assert together(few) == {frozenset(range(19))} and len(few) == 18
    tasks = [Task(f"t{i}", prompt, "1", "numeric", "own") for i, prompt in enumerate([*goals, *goals])]
    assert sorted(map(len, splits._components(tasks))) == [2] * 40
    same = [Task(f"t{i}", rules, "1", "numeric", "own") for i in range(40)]
    assert [len(component) for component in splits._components(same)] == [40]


def test_no_two_splits_hold_near_duplicates(suite):
    of = [task.split for task in suite]
    found = near_duplicates.near_duplicates([task.prompt for task in suite], [task.family for task in suite])
    assert all(of[i] == of[j] for i, j in found)


# ---- seeds
def test_same_seed_same_suite_and_another_seed_another(corpus, tmp_path):
    first, again, other = (Suite.build(SPEC | {"seed": s}, corpus=corpus) for s in (3, 3, 4))
    assert first.tasks == again.tasks
    assert first.save(tmp_path / "a.jsonl").read_bytes() == again.save(tmp_path / "b.jsonl").read_bytes()
    assert len({t.prompt for t in first} & {t.prompt for t in other}) < 0.1 * len(first)


# ---- gold answers
def test_every_gold_passes_and_the_expert_reaches_it(suite, corpus):
    for task in list(suite)[::5]:
        solution = solve(task, shipped_families(corpus)[task.family].environment())
        assert verify(task, solution.answer).value == 1.0
        assert task.difficulty == difficulty(len(results_of(solution)))


def test_every_mutated_gold_fails(suite):
    answers = [t.answer for t in suite]
    rng = random.Random(0)
    for task in suite:
        other = rng.choice(answers)
        wrong = ["", " ", task.prompt, f"{task.answer} or {other}", f"{task.answer} and {task.answer}", "I could not find this.",
                 "nan", f"not {task.answer}", f"{task.answer} {task.answer}", f"1{task.answer}"]  # fmt: skip
        if normalize(other) != normalize(task.answer):
            wrong.append(other)
        if task.verifier["kind"] != "exact":
            wrong += [str(float(task.answer) + 1), str(float(task.answer) - 1), str(-float(task.answer) - 1)]
        for answer in wrong:
            assert verify(task, answer).value == 0.0, (task.prompt, task.answer, answer)


def test_a_suite_that_fails_its_audit_is_neither_built_nor_saved(tmp_path, corpus):
    path = tmp_path / "tasks.jsonl"
    Suite([Task("x", "p?", "Paris")]).save(path)
    before = path.read_bytes()
    with pytest.raises(SuiteError, match="not saved: .*prompt echo"):
        Suite([Task("x", "Paris?", "Paris")]).save(path)
    assert path.read_bytes() == before

    def generous(corpus, rng):
        number = rng.randint(1, 10**6)
        step = {"tool": "calculator", "arguments": {"expression": str(number)}}
        return Task(
            "", f"Say {number}.", str(number), {"kind": "numeric", "abs_tol": 1e9}, meta={"plan": [step]}
        )

    with pytest.raises(SuiteError, match="not built: .*perturbed"):
        Suite.build({"families": ["G"], "n_tasks": 20}, corpus=corpus, families={"G": generous})


@pytest.mark.parametrize("family", [lookup, multihop])
def test_plans_answer_from_the_corpus_and_questions_name_the_start_only(corpus, family):
    known = {(PHRASES[k].format(*e), str(v)) for k, e, v in facts(corpus.connection)}
    rng = random.Random(1)
    drafted = [t for t in (family.draft(corpus, rng) for _ in range(600)) if t is not None]
    assert len(drafted) > 300
    for task in drafted:
        values = []
        for step in task.meta["plan"]:
            if step["tool"] == "search":
                assert (step["arguments"]["query"], step["expect"]) in known
                values.append(step["expect"])
        if family is multihop:
            assert values[-1] == task.answer
            assert (
                len(set(values[:-1])) == len(values) - 1
                and task.meta["entities"][0].split(":")[1] in task.prompt
            )


def test_literal_golds_of_family_a(corpus):
    """Gold answers of drafted tasks, computed again from the search results by plain arithmetic."""
    rng = random.Random(2)
    checked = collections.Counter()
    for _ in range(600):
        task = lookup.draft(corpus, rng)
        if task is None:
            continue
        found = [
            float(s["expect"]) if s["expect"].replace(".", "").isdigit() else 0
            for s in task.meta["plan"]
            if "expect" in s
        ]
        template = task.meta["template"]
        by_hand = {"sum": sum, "total": sum, "total4": sum, "mean": lambda v: sum(v) / len(v), "product": lambda v: v[0] * v[1],
                   "ratio": lambda v: v[0] / v[1], "difference": lambda v: v[0] - v[1], "years": lambda v: v[0] - v[1],
                   "ratio_of_sums": lambda v: (v[0] + v[1]) / (v[2] + v[3]), "density": lambda v: v[0] / v[1],
                   "change": lambda v: v[0] - v[1], "single": lambda v: v[0]}.get(template)  # fmt: skip
        if by_hand:
            assert float(task.answer) == pytest.approx(by_hand(found), abs=0.00501), task
            checked[template] += 1
    assert len(checked) == 12


# ---- variety
def test_the_default_suite_stays_the_same(default):
    """Baselines were measured on it: new kinds of questions go into a lab file."""
    assert shared(default) == {}
    text = json.dumps([[t.id, t.prompt, t.answer, t.split] for t in default])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "e34f2bf69b183eb1"


# ---- what a policy can learn from
def trajectory(task_id: str, success: float | None) -> Trajectory:
    return Trajectory(task_id, "p", 0, 0, (), (), (), (), (), StopReason.ANSWER, success=success)


def test_tasks_that_a_policy_always_or_never_solves_are_dropped_from_training(suite):
    train = [t.id for t in suite.split("train")]
    outcomes = [
        [0] * 4,
        [1] * 4,
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, None, None, 0],
        [None, 1, 1, 1],
    ]
    given = {task: outcomes[i % len(outcomes)] for i, task in enumerate(train)}
    found = [trajectory(task, value) for task, values in given.items() for value in values]
    known = pass_rates.with_pass_rates(suite, pass_rates.pass_rates(found))
    kept = pass_rates.learnable(known.split("train"))
    assert [t.id for t in kept] == [t for i, t in enumerate(train) if i % 7 in (2, 3, 4, 5)]
    assert [t.meta["pass_rate"] for t in kept[:4]] == [0.25, 0.5, 0.75, 0.5]
    assert all(known.split(name) == suite.split(name) for name in ("test", "validation"))
    solved = pass_rates.with_pass_rates(suite, dict.fromkeys(train, 1.0))
    with pytest.raises(SuiteError, match="always or never solves"):
        pass_rates.learnable(solved.split("train"))


# ---- the expert
@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (None, "has no plan"),
        ([{"tool": "fly", "arguments": {}}], "no tool 'fly'"),
        ([{"tool": "search", "arguments": {"query": ""}}], "failed: the query is empty"),
        (
            [{"tool": "search", "arguments": {"query": "capital of France"}, "expect": "Lyon"}],
            "search({'query': 'capital of France'}) does not find 'Lyon' in '[1] The capital of France is Paris.",
        ),
    ],
)
def test_a_plan_that_leads_nowhere_says_why(corpus, plan, says):
    with pytest.raises(PlanError) as error:
        solve(Task("x", "p?", "1", meta={} if plan is None else {"plan": plan}), CorpusEnvironment(corpus))
    assert says in str(error.value)


def test_arguments_are_filled_by_earlier_values():
    assert expert.fill({"a": "{0} - {1}", "b": "{x} {}", "c": 3}, ["5", "{0}"]) == {
        "a": "5 - {0}",
        "b": "{x} {}",
        "c": 3,
    }
    nested = {"code": "r'[0-9]{3}'", "values": ["{0}", {"x": "{0}"}]}
    assert expert.fill(nested, ["5"]) == {"code": "r'[0-9]{3}'", "values": ["5", {"x": "5"}]}
    with pytest.raises(KeyError):  # one that no earlier step expects
        expert.fill({"a": "{1}"}, ["5", None])


@pytest.mark.parametrize(
    ("observation", "expected", "found"),
    [
        ("[1] The area of X is 20 square km.", "20", "20"),
        ("[1] The area of X is 1.20 square km.", "20", None),
        ("[1] Nothing.\n[2] The capital of X is Paris.", "Paris", None),  # a reader takes what comes first
        ("[1] The only neighbour of A is B.", "A", None),
        ("65\n", "65", "65"),
        ("aurora,80,birch,65 on 2026-11-05", "80", "80"),
        ("on 2026-11-05, at 10:30, -7 degrees, room_9", "11", None),
        ("on 2026-11-05, at 10:30, -7 degrees, room_9", "10", None),
        ("on 2026-11-05, at 10:30, -7 degrees, room_9", "7", None),
        ("on 2026-11-05, at 10:30, -7 degrees, room_9", "9", None),
        ("Der Preis beträgt 65€, das Zimmer heißt Süd.", "65", "65"),
        ("Das Zimmer heißt Südblick.", "Süd", None),
        ("法国的首都是巴黎。价格为65欧元。", "巴黎", "巴黎"),
        ("法国的首都是巴黎。价格为65欧元。", "65", "65"),
        ("가격은 65유로입니다", "65", "65"),
        ('{"room": "A", "beds": [2, 3], "price": 65.5, "city": "M\\u00fcnchen"}', "München", "München"),
        ('{"room": "A", "beds": [2, 3], "price": 65.5}', 65.5, 65.5),
        ('{"room": "A", "beds": [2, 3], "price": 65.5}', "65", None),
        ('{"room": "A", "beds": [2, 3], "price": 65.5}', {"path": "beds[1]"}, 3),
        ('{"room": "A", "beds": [2, 3], "price": 65.5}', {"path": "$.beds[7]"}, None),
        ("no JSON", {"path": "beds"}, None),
        ("Ihr Code: K-17.", {"pattern": r"Code: ([\w-]+)"}, "K-17"),
        ("Ihr Code: K-17.", {"pattern": r"K-\d+"}, "K-17"),
        ("Ihr Code: K-17.", {"pattern": r"X-\d+"}, None),
        ("x65 " * 100_000, "65", None),
    ],
)
def test_what_a_step_expects_is_found_where_it_stands_alone(observation, expected, found, thread_time):
    began = thread_time()
    assert expert.shown(observation, expected) == found
    assert thread_time() - began < 2


class Rooms:
    def reset(self, **row):
        pass

    def free(self, beds: int) -> dict:
        """List free rooms.

        Args:
            beds: How many.
        """
        return {"rooms": [{"number": 17, "beds": beds}, {"number": 23, "beds": beds}]}

    def price(self, number: int) -> dict:
        """What a room costs.

        Args:
            number: The room's.
        """
        return {"number": number, "price": 3 * number}


def test_tools_that_return_json_are_used_in_a_plan():
    """And a number that one finds is a number in the next one's arguments."""
    plan = [
        {"tool": "free", "arguments": {"beds": 2}, "expect": {"path": "rooms[1].number"}},
        {"tool": "price", "arguments": {"number": "{0}"}, "expect": 69},
    ]
    task = Task("x", "p?", "69", meta={"plan": plan})
    assert task_problem(task) is None
    found = solve(task, Rooms())
    assert found.answer == "69" and found.turns[1].results[0].arguments == {"number": 23}
    with pytest.raises(PlanError, match="the pattern '\\(' of a plan is none"):
        solve(Task("x", "p?", "1", meta={"plan": [plan[0] | {"expect": {"pattern": "("}}]}), Rooms())


# ---- a family of one's own


@pytest.mark.parametrize(("always", "built"), [(False, True), (True, False)])
def test_a_family_of_yes_and_no_is_built_and_one_of_yes_alone_is_not(always, built):
    def draft(corpus, rng):
        a, b = sorted(rng.sample(range(1000), 2)) if always else rng.sample(range(1000), 2)
        return planned(
            f"Is {a} less than {b}?", str(a < b).lower(), "calculator", {"expression": f"{a} < {b}"}
        )

    build = partial(Suite.build, {"families": ["mine"], "n_tasks": 300}, families={"mine": Family(draft)})
    if built:
        assert set(collections.Counter(t.answer for t in build())) == {"true", "false"}
    else:
        with pytest.raises(SuiteError, match="only 180 of the 300 .*an answer"):
            build()


def planned(prompt: str, answer: str, tool: str, arguments: dict, **more) -> Task:
    return Task("", prompt, answer, meta={"plan": [{"tool": tool, "arguments": arguments, **more}]})


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        (lambda n: None, "gave only 0 of the 20 .*returned None each time"),
        (lambda n: {}["shelf"], "family mine drafts no task: test_tasks.py, line .*: KeyError: 'shelf'"),
        (lambda n: "a task", "of type str; return a Task"),
        (lambda n: Task("", f"{n}?", 7), "answer is 7; it should be text"),
        (lambda n: planned("Same?", "7", "calculator", {"expression": "7"}), "gave only 1 of the 20"),
        (lambda n: Task("", f"{n}?", "7"), "has no plan"),
        (lambda n: planned(f"{n}?", "7", "search", {"query": "x"}, expect="7"), "does not find"),
        (
            lambda n: Task("", f"{n}?", "7", "numerical", meta={"plan": []}),
            r"0\.\d+\?': unknown verifier kind 'numerical': use one of",
        ),
        (
            lambda n: planned(f"{n}?", "8", "calculator", {"expression": "7"}),
            "gold answer '8' .* fails: the tools give '7'",
        ),
        (
            lambda n: Task("", f"{n}?", f"{n}", meta={"plan": [], "entities": ["a", "b"]}),
            r"only 3 .*: too many share a prompt, their entities \(meta\['entities'\]\)",
        ),
    ],
    ids="none raises text number one no-plan not-found no-verifier gold entities".split(),
)
def test_a_family_that_cannot_give_enough_says_why(corpus, draft, says, monkeypatch):
    monkeypatch.setattr("agentkit.tasks.suite.MAX_MISSES", 100)
    families = {"mine": lambda corpus, rng: draft(rng.random())}
    with pytest.raises(SuiteError, match=says):
        Suite.build({"families": ["mine"], "n_tasks": 20}, corpus=corpus, families=families)


# ---- the spec
@pytest.mark.parametrize(
    ("spec", "says"),
    [({"families": ["Z"]}, "unknown task family 'Z': use A, B"), ({"families": ["A", "A"]}, "named twice")],
)
def test_a_wrong_spec_is_named(corpus, spec, says):
    with pytest.raises(SuiteError) as error:
        Suite.build(spec, corpus=corpus)
    assert says in str(error.value)


# ---- machines without a sandbox
def test_families_that_need_the_sandbox_are_left_out_where_there_is_none(corpus, monkeypatch):
    monkeypatch.setattr("agentkit.sandbox.run._missing", "this is macOS")
    with pytest.warns(UserWarning, match="family C is left out: no sandbox here: this is macOS; .*Docker"):
        suite = Suite.build({"families": ["A", "C"], "n_tasks": 40}, corpus=corpus)
    assert {task.family for task in suite} == {"A"} and set(suite.environments) == {"A"}
    with (
        pytest.warns(UserWarning),
        pytest.raises(SuiteError, match="every family needs the sandbox: .*Docker"),
    ):
        Suite.build({"families": ["C"], "n_tasks": 40}, corpus=corpus)
