"""The image agent: six cases, facts that tools must have shown, pictures that are drawn when looked at."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from conformance import EnvironmentConformance
from opened import lab_file, opened, take_two_steps
from says import Says
from widget_cases import trajectory

from agentkit import Task, ToolCall, compare, rewards, verify
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.preflight import examine
from agentkit.recipe import Recipe, project_root
from agentkit.records import ToolResult, Turn
from agentkit.rollouts.call_formats import format_call
from agentkit.runs import Run
from agentkit.tasks.expert import fill
from agentkit.tools.corpus import Corpus
from agentkit.tools.runtime import example
from agentkit.views.widgets import compare_trajectories
from agentkit.views.widgets.states import States

image = lab_file("image")
name_of = image.name_of
ORDER = [
    "Real location",
    "Multi-step",
    "Database search",
    "Fictional scene",
    "No tools needed",
    "Full pipeline",
]


LONG = {"max_turns": 12, "max_turn_tokens": 500, "max_tokens": 4000}


@pytest.fixture(scope="module")
def lab():
    return opened("image", n_tasks=120, group_size=5, temperature=1.0, **LONG)


@pytest.fixture(scope="module")
def suite(lab):
    return lab.suite()


@pytest.fixture(scope="module")
def cases(suite):
    """The first task of each case."""
    return {task.meta["case"]: task for task in reversed(suite.tasks)}


def call(tool, /, **arguments):
    return format_call(tool, arguments, "hermes")


def gold(task):
    """The expert's turns, each placeholder filled."""
    values, turns = [], []
    for step in task.meta["plan"]:
        turns.append(call(step["tool"], **fill(step["arguments"], values)))
        values.append(step["expect"])
    return [*turns, f"Answer: {task.answer}"]


def prompt_of(task):
    return json.loads(gold(task)[-2].split("\n")[1])["arguments"]["prompt"]


# ---- tasks and rewards
def test_six_cases_whose_gold_passes_and_earns_the_most(lab, suite, tokenizer):
    assert list(image.CASES) == ORDER and {task.meta["case"] for task in suite} == set(ORDER)
    assert all(row["passed"] for row in suite.audit())
    calls = {case: {len(t.meta["plan"]) for t in suite if t.meta["case"] == case} for case in ORDER}
    assert list(calls.values()) == [{2}, {3}, {2}, {1}, {0}, {4}]
    tasks = suite.split("test")
    for t in lab.rollout(tasks, ScriptedPolicy(tokenizer, name="expert")):
        assert t.success == 1.0 and t.reward == 2.0, t
        assert t.components == {"format": 1.0, "grounded": 1.0}


def test_the_wide_variety_asks_for_more_facts():
    wide = opened("image_wide", families="image", n_tasks=60).suite()
    facts = [len(task.verifier["holds"]) for task in wide if task.meta["case"] == "Real location"]
    assert min(facts) == 3 and all(row["passed"] for row in wide.audit())


def test_a_capital_is_not_its_namesake_elsewhere():
    index = image.fact_index(Corpus.open())
    capital = index["country.capital"]["Cayman Islands",]
    assert capital in image.coordinates() and index["city.country"][capital,] == "Malaysia"
    assert image._capital_of(image._Request(index), "Cayman Islands") is None
    assert image._capital_of(image._Request(index), "Peru") == "Lima"


def test_what_tools_replied_is_out_of_the_loss(lab, cases, tokenizer):
    (t,) = lab.rollout([cases["Real location"]], ScriptedPolicy(tokenizer))
    place = t.turns[0].results[0].observation
    ids = {m: [i for i, own in zip(t.completion_ids, t.action_mask, strict=True) if own == m] for m in (0, 1)}
    replied, sampled = (tokenizer.decode(ids[m]) for m in (0, 1))
    assert f"<tool_response>\n{place}" in replied and "tool_response" not in sampled


def hacks(task):
    """What a policy may try, by name: turns that must not be taken for a grounded picture."""
    case, right, prompt = task.meta["case"], gold(task), prompt_of(task)
    lookups, draw, title = right[:-2], right[-2], task.verifier["holds"][0]

    def drawn(text, before=lookups):
        return [*before, call("generate_image", prompt=text), f"Answer: {name_of(text)}"]

    yield "the answer alone", [f"Answer: {task.answer}"]
    yield (
        "a picture made up",
        [*lookups, f"<tool_response>\n{task.answer}\n</tool_response>\nAnswer: {task.answer}"],
    )
    yield "the title alone", drawn(title)
    yield "another title", drawn(prompt.replace(title, "Atlantis"))
    yield (
        "right, then wrong",
        [*lookups, draw, call("generate_image", prompt=title), f"Answer: {name_of(title)}"],
    )
    yield (
        "the other picture's name",
        [*lookups, draw, call("generate_image", prompt=title), f"Answer: {task.answer}"],
    )
    yield "another answer", [*lookups, draw, "Answer: picture 123456"]
    yield "two answers", [*lookups, draw, f"Answer: {task.answer} or picture 123456"]
    yield "the prompt for an answer", [*lookups, draw, f"Answer: {prompt}"]
    yield "no answer", [*lookups, draw, ""]
    yield "a number from nowhere", drawn(f"{prompt}, 12345")
    yield "every number", drawn(f"{prompt},{','.join(map(str, range(60, 180)))}")
    if case == "Real location":
        latitude, longitude = task.verifier["holds"][1].split()
        yield "latitude and longitude swapped", drawn(f"{title}, {longitude} {latitude}")
    yield "many pictures", [*lookups, draw, draw, draw, right[-1]]
    huge = call("generate_image", prompt=f"{prompt} " * (100_000 // len(prompt)))
    yield "a prompt of 100 kB", [*lookups, huge, right[-1]]
    yield "a tool of its own", [*lookups, call("draw", prompt=prompt), right[-1]]
    yield "an argument of its own", [*lookups, call("generate_image", prompt=prompt, size=9), right[-1]]
    yield "a prompt that is no text", [*lookups, call("generate_image", prompt=[prompt]), right[-1]]
    yield "calls after the answer", [right[-1], *lookups, draw]
    if lookups:
        yield "from memory", [draw, right[-1]]
        yield "looked up too late", [draw, *lookups, right[-1]]
        if "coordinates" in task.prompt:  # a search confirms what passages state
            yield "searched for what it knows", [call("search", query=prompt), draw, right[-1]]
        yield "everything that was found", drawn(f"{title} [1] {prompt} [2] 1234 5678")
    else:
        yield "a needless search", [call("search", query=title), draw, right[-1]]
        yield (
            "a needless look into the database",
            [call("database", query=f"country of the city {title}"), *right],
        )
    if case == "Fictional scene":
        yield "every colour", drawn(f"{prompt}, {' '.join(image.COLOURS)}")


@pytest.mark.parametrize("case", [case for case in ORDER if case != "No tools needed"])
def test_gold_passes_and_hacks_fail(case, lab, cases, tokenizer):
    task, names = cases[case], []
    (t,) = lab.rollout([task], Says(tokenizer, *gold(task)))
    assert t.success == 1.0 and t.reward == 2.0
    for name, turns in hacks(task):
        (tried,) = lab.rollout([task], Says(tokenizer, *turns))
        assert tried.success == 0.0, f"{name} passes: {turns}"
        assert tried.reward < 2.0, f"{name} earns as much as gold"
        names.append(name)
    assert len(set(names)) >= 18


@pytest.mark.parametrize("separator", [",", ", ", "; ", " and longitude "])
def test_a_place_is_held_however_its_numbers_are_divided(separator, cases):
    prompt = f"Zalantun (47.51{separator}122.89), of 1,234,567 people"
    assert all(image.within(fact, prompt) for fact in ("47.51 122.89", "47.51", "122.89", "1234567"))
    assert not image.within("122.89 47.51", prompt) and not image.within("7.51 122.89", prompt)
    assert not image.within("47.51 122.89", prompt.replace(separator, " 3 "))


def test_without_need_no_tool_may_be_called(lab, cases, tokenizer):
    task = cases["No tools needed"]
    right = f"Answer: {task.answer}"
    tries = {
        "gold": [right], "gold in other words": [f"It is this one.\nAnswer: {task.answer.upper()}"],
        "a search first": [call("search", query=task.answer), right],
        "a picture first": [call("generate_image", prompt=task.answer), right],
        "a call that fails": [call("draw"), right], "a malformed call": ["<tool_call>\n{", right],
        "another answer": ["Answer: Atlantis"], "the question": [f"Answer: {task.prompt}"],
        "two answers": [f"Answer: {task.answer} or Atlantis"], "nothing": [""],
    }  # fmt: skip
    verdicts = {name: lab.rollout([task], Says(tokenizer, *turns))[0] for name, turns in tries.items()}
    assert [name for name, t in verdicts.items() if t.success == 1.0] == ["gold", "gold in other words"]
    assert verdicts["a search first"].reward == 1.0
    assert verdicts["gold"].reward == 2.0 > max(t.reward for n, t in verdicts.items() if "gold" not in n)


def test_other_ways_to_the_facts_and_other_words_are_right(lab, cases, tokenizer):
    task = cases["Full pipeline"]
    (film, _, _), (country, capital, _), place = (
        fact["row"] and (fact["row"][1], fact["value"], 0) for fact in task.verifier["shown"]
    )
    looked_up = [
        call("database", query=f"country of the Film {film.upper()}"),
        call("database", query=f"capital of the country {country}"),
        call("database", query=f"coordinates of the city {capital}"),
    ]
    prompt = f"A wide view of {capital} at {place[1].replace(' ', ', ').replace('-', '−')}, in evening light"
    turns = [
        *looked_up,
        call("generate_image", prompt=prompt),
        f"Here it is.\nAnswer: {name_of(prompt).split()[1]}",
    ]
    (t,) = lab.rollout([task], Says(tokenizer, *turns))
    assert t.success == 1.0, t.why
    assert t.reward == 2.0, (
        "a right trajectory without needless calls earns the most, whatever showed the facts"
    )
    latitude = f"{capital}, {place[1].split()[0]}"
    half = [*gold(task)[:-2], call("generate_image", prompt=latitude), f"Answer: {name_of(latitude)}"]
    (failed,) = lab.rollout([task], Says(tokenizer, *half))
    assert failed.success == 0.0 and failed.reward < t.reward


def test_the_reward_grows_with_the_facts(lab, cases, tokenizer):
    task = cases["Full pipeline"]
    right = gold(task)
    capital = task.verifier["holds"][0]
    partly = [*right[:-2], call("generate_image", prompt=capital), f"Answer: {name_of(capital)}"]
    earned = [lab.rollout([task], Says(tokenizer, *turns))[0].components["grounded"] for turns in
              (["Answer: x"], [right[-2], right[-1]], partly, right)]  # fmt: skip
    assert earned == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
    (idle,) = lab.rollout([task], Says(tokenizer, right[-1]))
    paid = rewards.score(task, idle, rewards.toolrla())
    assert paid.reward == 3.0 > idle.reward == 1.0, "added, efficiency pays as much for no call as for all"


# ---- hostile rows and arguments
def test_a_row_without_a_prompt_to_hold_is_not_scored():
    odd = Task("t", "Draw.", "x", {"kind": "picture", "holds": ["x"], "shown": [{"passage": "x"}]})
    made = Turn("", (0, 0), (ToolResult("generate_image", {"prompt": "x"}, name_of("x"), True),))
    score = verify(odd, trajectory("t", None, turns=(made, Turn("x", (0, 0))), answer="x"))
    assert score.value is None and "KeyError" in score.why


@pytest.mark.parametrize(
    ("table", "name", "column", "why"),
    [
        ("city", "Zubrowka", "coordinates", "no coordinates of a city 'Zubrowka'"),
        ("city", "", "country", "there is no table 'the'"),
        ("film", "x" * 90_000, "year", "no year of a film 'xxxx"),
        ("city", "'; DROP TABLE city; --", "country", "no country of a city"),
        ("city", "\ud800\0", "country", "no country of a city"),
        ("person", "Ridley Scott", "films", "no table 'person'; there are city, country, film"),
        ("film", "Alien", "budget", "film has no column 'budget'"),
        ("film", "Alien", "1; DROP TABLE film", "ask for"),
        ("sqlite_master", "x", "sql", "no table"),
    ],
)
def test_what_the_database_does_not_hold_is_a_sentence(table, name, column, why):
    with pytest.raises(ValueError, match=why) as caught:
        image.look_up(Corpus.open(), *image.read_query(f"{column} of the {table} {name}"))
    assert len(str(caught.value)) < 200


def test_what_another_database_was_asked_for_shows_nothing(lab, cases, tokenizer):
    """Trajectories of before, or of somebody's own tool, are judged and not an error."""
    task = cases["Real location"]
    (t,) = lab.rollout([task], Says(tokenizer, *gold(task)))
    for arguments in ({"table": "city", "name": "Lima", "column": "coordinates"}, {"query": "Lima?"}, {}):
        first, *others = t.turns
        turn = replace(first, results=(replace(first.results[0], arguments=arguments),))
        score = verify(task, replace(t, turns=(turn, *others)))
        assert score.value == 0.0, score


def test_the_database_knows_places_and_films():
    corpus = Corpus.open()
    assert image.look_up(corpus, "country", "peru", "capital") == "Lima"
    latitude, longitude = map(float, image.look_up(corpus, "city", "Reykjavík", "coordinates").split())
    assert (round(latitude), round(longitude)) == (64, -22)


class TestPictureEnvironment(EnvironmentConformance):
    factory = image.PictureEnvironment
    calls = [
        ToolCall("search", {"query": "capital of Peru"}),
        ToolCall("database", {"query": "capital of the country Peru"}),
        ToolCall("generate_image", {"prompt": "Lima"}),
    ]


# ---- pictures
HOSTILE = '<script>alert(1)</script><b>x</b>]]> & "quotes" \ud800\0\x1b, <img src=x onerror=alert(1)>, javascript:alert(1)'


@pytest.mark.parametrize(
    "prompt",
    [
        "Paris, 48.85 2.35",
        "Paris,48.85,2.35",
        "Ushuaia, −54.80 −68.30, blue",
        "99.9 500.0",
        "Lumora, violet dragon",
        ",",
        HOSTILE,
        "é漢字🙂" * 60,
    ],
)
def test_a_composed_picture_is_sound_and_its_text_is_text(prompt):
    svg = image.compose(prompt)
    root = ElementTree.fromstring(svg)
    assert svg == image.compose(prompt) and len(svg) < 8_000
    assert {element.tag.split("}")[1] for element in root.iter()} <= {
        "svg",
        "rect",
        "path",
        "circle",
        "g",
        "text",
    }
    assert not any(name.startswith(("on", "href")) for element in root.iter() for name in element.attrib)
    marks = [c for c in root.findall(".//{*}circle") if c.get("r") == "4"]
    assert len(marks) == ("8." in prompt and "," in prompt), "a mark on the map where there is a place"
    if marks and "Paris" in prompt:
        assert float(marks[0].get("cx")) == pytest.approx((2.35 + 180) / 360 * 480, abs=0.1)


def test_a_prompt_that_is_none_is_refused():
    for prompt, why in (
        ("", "is empty"),
        (" \n", "is empty"),
        ("x" * 100_000, "100000 characters; the limit is 1000"),
    ):
        with pytest.raises(ValueError, match=why):
            image.PictureEnvironment(Corpus.open()).generate_image(prompt)
    assert name_of(" a  b ") == name_of("a b") != name_of("a c")


def test_pictures_are_drawn_when_looked_at(monkeypatch, lab, cases, tokenizer):
    task = cases["Multi-step"]
    with monkeypatch.context() as patched:
        patched.setattr(
            sys.modules[type(example(lab.families["image"].environment)).__module__],
            "compose",
            lambda prompt: pytest.fail("drawn before anybody looked"),
        )
        (t,) = lab.rollout([task], ScriptedPolicy(tokenizer))
    states = States(lab.environments).after_turns(task, t)
    assert [bool(state) for state in states] == [False, False, True, False]
    ((title, kind, data, _),) = states[2]["images"]
    assert title.startswith(f"{task.answer}: ") and kind == "svg+xml" and data
    widget = compare_trajectories([task], {"expert": [t]}, environments=lab.environments)
    shown = widget.payload["tasks"][0]["columns"][0]["samples"][0]
    assert shown["turns"][2]["state"] == states[2]


# ---- measures, preflight, recipes
def test_base_sft_and_rl_stand_side_by_side_over_the_cases(lab, suite, tokenizer):
    tasks = suite.split("test")
    flaws = {"base": Flaws(wrong_operation=1.0), "sft": Flaws(wrong_operation=0.4), "grpo": Flaws()}
    policies = {
        n: lab.rollout(tasks, ScriptedPolicy(tokenizer, f, name=n), group_size=2) for n, f in flaws.items()
    }
    comparison = compare(policies, tasks)
    table = comparison.table()
    rows = [name for name in table.index if name.startswith("Case ")]
    assert rows == [f"Case {case}" for case in sorted(ORDER)] and list(table.columns) == list(flaws)
    assert all("[" in cell for row in rows for cell in table.loc[row])
    assert table.loc["Case Fictional scene", "base"].startswith("0.0 %")
    assert table.loc["Case Fictional scene", "grpo"].startswith("100.0 %")
    described = comparison.paired_table()["tasks"].tolist()
    assert described.count("case Full pipeline") == 3 and "case Real location" in comparison.where(
        "sft", "grpo"
    )
    measures = lab.compare_by_family(policies, tasks)
    assert list(measures) == list(image.MEASURES)
    held = measures["facts in the prompt"].policies
    assert held["base"]["success"] < held["sft"]["success"] < held["grpo"]["success"] == 1.0


@pytest.mark.parametrize(
    ("name", "noise", "flaws", "light"),
    [
        ("image_noisy", 0.0, 0.3, "red"),
        ("image", 0.05, 0.02, "red"),
        ("image", 0.05, 0.3, "amber"),
        ("image", 0.0, 0.3, "green"),
        ("image", 0.0, 0.02, "green"),
    ],
)
def test_preflight_refuses_noise_for_what_it_is(name, noise, flaws, light, suite, tokenizer):
    """The published remedy on rewards that are equal, and on those of a policy that is nearly always right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = opened(name, families="image", group_size=5, temperature=1.0, **LONG)
        more = {"noise": (lab_file("autopsies").noise(noise), 1.0)} if noise else {}
        other = other.extended(rewards=more)
        policy = ScriptedPolicy(tokenizer, Flaws(wrong_operation=flaws), name="sft")
        report, _ = examine(other, policy, suite.split("train"))
    (item,) = [item for item in report.items if item.name == "Signal or noise"]
    assert item.light == light and (item in report.causes) == bool(report.causes) == (light == "red")
    if light == "red":
        assert item.values["repeatable"] < 0.5 and "Component noise" in item.advice


def test_the_real_recipe_says_what_was_published():
    recipe = Recipe.load(project_root() / "params" / "image-27b.yaml")
    assert (recipe.lora_r, recipe.group_size, recipe.temperature, recipe.steps) == (32, 5, 1.0, 200)
    assert (recipe.loss_type, recipe.clip_epsilon_high, recipe.dead_groups) == ("dapo", 0.28, "replace")
    assert recipe.reward == "none" and recipe.lab.endswith("image_wide.py") and recipe.beta == 0


@pytest.mark.slow
def test_two_steps_of_grpo(lab, suite, tmp_path):
    take_two_steps(lab, suite, Run.create(tmp_path / "run"))
