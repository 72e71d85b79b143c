"""Suites: every gold answer passes, every mutated one fails, splits share nothing, seeds decide everything."""

import collections
import hashlib
import json
import random
from functools import partial
from itertools import combinations

import pytest

from agentkit import Lab, Suite, Task, verify
from agentkit.records import SuiteError
from agentkit.tasks import PlanError, expert, near_duplicates, shipped_families, solve, splits
from agentkit.tasks.families import lookup, multihop
from agentkit.tasks.family import Family, difficulty
from agentkit.tools.corpus import PHRASES, facts
from agentkit.tools.environments import CorpusEnvironment
from agentkit.trajectories import results_of
from agentkit.verifiers import normalize

SPEC = {"families": ["A", "B"], "n_tasks": 120, "seed": 0}


def shared(tasks: Suite) -> dict[str, set]:
    """What more than one split holds: entity pairs (or lone entities), prompts, ids."""
    seen = collections.defaultdict(set)
    for task in tasks:
        entities = sorted(set(task.meta["entities"]))
        for key in list(combinations(entities, 2)) or [tuple(entities)]:
            seen["entities", key].add(task.split)
        words = "".join(c if c.isalnum() else " " for c in task.prompt.casefold()).split()
        seen["prompt", " ".join(words)].add(task.split)
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
    named = ["A total4", "B film.country > country.capital"]
    spec = {"families": ["A", "B"], "n_tasks": 120, "seed": 3, "new_templates": named}
    suite = Suite.build(spec, corpus=corpus)
    new = [t for t in suite if splits.stratum(t) in named]
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
        words = (normalize(text).split() for text in (a, b))
        one, two = ({*zip(["", *w], [*w, ""], strict=True)} for w in words)
        return len(one & two) / len(one | two)

    for similar in (0.6, 0.85, 1.0):
        pairs = combinations(range(len(prompts)), 2)
        expected = {(i, j) for i, j in pairs if alike(prompts[i], prompts[j]) >= similar}
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


def test_near_duplicates_stay_together_where_a_question_stands_twice():
    asked = ["Who?", "Who?", "Where does it lie?", "where does it lie", *(f"What is {i}?" for i in range(6))]
    tasks = [Task(str(i), prompt, "") for i, prompt in enumerate(asked)]
    held = [splits.a_fifth(tasks, random.Random(seed)) for seed in range(20)]
    assert all(("0" in own) == ("1" in own) and ("2" in own) == ("3" in own) for own in held)
    assert any("2" in own for own in held)


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
        verifier = {"kind": "numeric", "abs_tol": 1e9}
        return Task("", f"Say {number}.", str(number), verifier, meta={"plan": [step]})

    with pytest.raises(SuiteError, match="not built: .*perturbed"):
        Suite.build({"families": ["G"], "n_tasks": 20}, corpus=corpus, families={"G": generous})


@pytest.mark.parametrize("family", [lookup, multihop])
def test_plans_answer_from_the_corpus_and_questions_name_the_start_only(corpus, family):
    known = {(PHRASES[k].format(*e), str(v)) for k, e, v in facts(corpus.connection)}
    rng = random.Random(1)
    drafted = [t for t in (family.draft(corpus, rng) for _ in range(600)) if t is not None]
    assert len(drafted) > 300
    for task in drafted:
        lookups = [step for step in task.meta["plan"] if step["tool"] == "search"]
        assert {(step["arguments"]["query"], step["expect"]) for step in lookups} <= known
        values = [step["expect"] for step in lookups]
        if family is multihop:
            assert values[-1] == task.answer and len(set(values[:-1])) == len(values) - 1
            assert task.meta["entities"][0].split(":")[1] in task.prompt


def test_the_default_suite_stays_the_same(default):
    """Baselines were measured on it: new kinds of questions go into a lab file."""
    text = json.dumps([[t.id, t.prompt, t.answer, t.split] for t in default])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "e34f2bf69b183eb1"


# ---- the expert
@pytest.mark.parametrize(("plan", "says"), [
    (None, "has no plan"),
    ([{"tool": "fly", "arguments": {}}], "no tool 'fly'"),
    ([{"tool": "search", "arguments": {"query": ""}}], "failed: the query is empty"),
    ([{"tool": "search", "arguments": {"query": "x"}, "expect": {"pattern": "("}}], "the pattern '(' of a plan is none"),
    ([{"tool": "search", "arguments": {"query": "capital of France"}, "expect": "Lyon"}], "does not find 'Lyon' in '[1] The"),
])  # fmt: skip
def test_a_plan_that_leads_nowhere_says_why(corpus, plan, says):
    with pytest.raises(PlanError) as error:
        solve(Task("x", "p?", "1", meta={} if plan is None else {"plan": plan}), CorpusEnvironment(corpus))
    assert says in str(error.value)


def test_arguments_are_filled_by_earlier_values():
    given = {"a": "{0} - {1}", "b": "{x} {}", "c": 3}
    assert expert.fill(given, ["5", "{0}"]) == {"a": "5 - {0}", "b": "{x} {}", "c": 3}
    nested = {"code": "r'[0-9]{3}'", "values": ["{0}", {"x": "{0}"}]}
    assert expert.fill(nested, ["5"]) == {"code": "r'[0-9]{3}'", "values": ["5", {"x": "5"}]}
    with pytest.raises(KeyError):  # one that no earlier step expects
        expert.fill({"a": "{1}"}, ["5", None])


@pytest.mark.parametrize(("observation", "expected", "found"), [
    ("[1] The area of X is 20 square km.", "20", "20"),
    ("[1] The area of X is 1.20 square km.", "20", None),
    ("[1] Nothing.\n[2] The capital of X is Paris.", "Paris", None),  # a reader takes what comes first
    ("65\n", "65", "65"),
    ("aurora,80,birch,65 on 2026-11-05", "80", "80"),
    ("on 2026-11-05, at 10:30, -7 degrees, room_9", "11", None),
    ("on 2026-11-05, at 10:30, -7 degrees, room_9", "10", None),
    ("Der Preis beträgt 65€, das Zimmer heißt Süd.", "65", "65"),
    ("Das Zimmer heißt Südblick.", "Süd", None),
    ("法国的首都是巴黎。价格为65欧元。", "巴黎", "巴黎"),
    ("가격은 65유로입니다", "65", "65"),
    ('{"room": "A", "beds": [2, 3], "price": 65.5, "city": "M\\u00fcnchen"}', "München", "München"),
    ('{"room": "A", "beds": [2, 3], "price": 65.5}', 65.5, 65.5),
    ('{"room": "A", "beds": [2, 3], "price": 65.5}', {"path": "beds[1]"}, 3),
    ('{"room": "A", "beds": [2, 3], "price": 65.5}', {"path": "$.beds[7]"}, None),
    ("no JSON", {"path": "beds"}, None),
    ("Ihr Code: K-17.", {"pattern": r"Code: ([\w-]+)"}, "K-17"),
    ("Ihr Code: K-17.", {"pattern": r"X-\d+"}, None),
    ("x65 " * 100_000, "65", None),
])  # fmt: skip
def test_what_a_step_expects_is_found_where_it_stands_alone(observation, expected, found, thread_time):
    began = thread_time()
    assert expert.shown(observation, expected) == found
    assert thread_time() - began < 2


@pytest.mark.parametrize(("always", "built"), [(False, True), (True, False)])
def test_a_family_of_yes_and_no_is_built_and_one_of_yes_alone_is_not(always, built):
    def draft(corpus, rng):
        a, b = sorted(rng.sample(range(1000), 2)) if always else rng.sample(range(1000), 2)
        step = {"expression": f"{a} < {b}"}
        return planned(f"Is {a} less than {b}?", str(a < b).lower(), "calculator", step)

    build = partial(Suite.build, {"families": ["mine"], "n_tasks": 300}, families={"mine": Family(draft)})
    if built:
        assert set(collections.Counter(t.answer for t in build())) == {"true", "false"}
    else:
        with pytest.raises(SuiteError, match="only 180 of the 300 .*an answer"):
            build()


def planned(prompt: str, answer: str, tool: str, arguments: dict, **more) -> Task:
    return Task("", prompt, answer, meta={"plan": [{"tool": tool, "arguments": arguments, **more}]})


@pytest.mark.parametrize(("draft", "says"), [
    (lambda n: None, "gave only 0 of the 20 .*returned None each time"),
    (lambda n: {}["shelf"], "family mine drafts no task: test_tasks.py, line .*: KeyError: 'shelf'"),
    (lambda n: "a task", "of type str; return a Task"),
    (lambda n: Task("", f"{n}?", 7), "answer is 7; it should be text"),
    (lambda n: planned("Same?", "7", "calculator", {"expression": "7"}), "gave only 1 of the 20"),
    (lambda n: Task("", f"{n}?", "7"), "has no plan"),
    (lambda n: planned(f"{n}?", "7", "search", {"query": "x"}, expect="7"), "does not find"),
    (lambda n: Task("", f"{n}?", "7", "numerical", meta={"plan": []}), r"0\.\d+\?': unknown verifier kind 'numerical': use one of"),
    (lambda n: planned(f"{n}?", "8", "calculator", {"expression": "7"}), "gold answer '8' .* fails: the tools give '7'"),
    (lambda n: Task("", f"{n}?", f"{n}", meta={"plan": [], "entities": ["a", "b"]}), r"only 3 .*: too many share a prompt, their entities \(meta\['entities'\]\)"),
], ids="none raises text number one no-plan not-found no-verifier gold entities".split())  # fmt: skip
def test_a_family_that_cannot_give_enough_says_why(corpus, draft, says, monkeypatch):
    monkeypatch.setattr("agentkit.tasks.suite.MAX_MISSES", 100)
    families = {"mine": lambda corpus, rng: draft(rng.random())}
    with pytest.raises(SuiteError, match=says):
        Suite.build({"families": ["mine"], "n_tasks": 20}, corpus=corpus, families=families)


def test_a_family_that_is_named_twice_is_refused(corpus):
    with pytest.raises(SuiteError, match="named twice"):
        Suite.build({"families": ["A", "A"]}, corpus=corpus)


def test_families_that_need_the_sandbox_are_left_out_where_there_is_none(corpus, monkeypatch):
    monkeypatch.setattr("agentkit.sandbox.run._missing", "this is macOS")
    with pytest.warns(UserWarning, match="family C is left out: no sandbox here: this is macOS; .*Docker"):
        suite = Suite.build({"families": ["A", "C"], "n_tasks": 40}, corpus=corpus)
    assert {task.family for task in suite} == {"A"} and set(suite.environments) == {"A"}
    with pytest.warns(UserWarning), pytest.raises(SuiteError, match="every family needs the sandbox: .*Doc"):
        Suite.build({"families": ["C"], "n_tasks": 40}, corpus=corpus)
