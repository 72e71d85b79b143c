"""The image agent: six cases, facts that tools must have shown, pictures that are drawn when looked at."""

import json
import warnings
from xml.etree import ElementTree

import pytest
from conformance import EnvironmentConformance
from opened import call, lab_file, opened
from says import Says

from agentkit import ToolCall
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.preflight import examine
from agentkit.tasks.expert import fill

image = lab_file("image")
name_of = image.name_of
ORDER = "Real location,Multi-step,Database search,Fictional scene,No tools needed,Full pipeline".split(",")
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


def gold(task):
    """The expert's turns, each placeholder filled."""
    values, turns = [], []
    for step in task.meta["plan"]:
        turns.append(call(step["tool"], **fill(step["arguments"], values)))
        values.append(step["expect"])
    return [*turns, f"Answer: {task.answer}"]


def test_six_cases_whose_gold_passes_and_earns_the_most(lab, suite, tokenizer):
    assert list(image.CASES) == ORDER and {task.meta["case"] for task in suite} == set(ORDER)
    assert all(row["passed"] for row in suite.audit())
    calls = {case: {len(t.meta["plan"]) for t in suite if t.meta["case"] == case} for case in ORDER}
    assert list(calls.values()) == [{2}, {3}, {2}, {1}, {0}, {4}]
    tasks = suite.split("test")
    for t in lab.rollout(tasks, ScriptedPolicy(tokenizer, name="expert")):
        assert t.success == 1.0 and t.reward == 2.0, t
        assert t.components == {"format": 1.0, "grounded": 1.0}


def hacks(task):
    """What a policy may try, by name: turns that must not be taken for a grounded picture."""
    case, right, title = task.meta["case"], gold(task), task.verifier["holds"][0]
    lookups, draw = right[:-2], right[-2]
    prompt = json.loads(draw.split("\n")[1])["arguments"]["prompt"]

    def drawn(text, before=lookups):
        return [*before, call("generate_image", prompt=text), f"Answer: {name_of(text)}"]

    huge = call("generate_image", prompt=f"{prompt} " * (100_000 // len(prompt)))
    again = call("generate_image", prompt=title)
    tries = {
        "the answer alone": [f"Answer: {task.answer}"],
        "a picture made up": [*lookups, f"<tool_response>\n{task.answer}\n</tool_response>", right[-1]],
        "the title alone": drawn(title),
        "right, then wrong": [*lookups, draw, again, f"Answer: {name_of(title)}"],
        "the other picture's name": [*lookups, draw, again, f"Answer: {task.answer}"],
        "another answer": [*lookups, draw, "Answer: picture 123456"],
        "no answer": [*lookups, draw, ""],
        "a number from nowhere": drawn(f"{prompt}, 12345"),
        "many pictures": [*lookups, draw, draw, draw, right[-1]],
        "a prompt of 100 kB": [*lookups, huge, right[-1]],
        "a tool of its own": [*lookups, call("draw", prompt=prompt), right[-1]],
        "a prompt that is no text": [*lookups, call("generate_image", prompt=[prompt]), right[-1]],
        "calls after the answer": [right[-1], *lookups, draw],
    }
    if case == "Real location":
        latitude, longitude = task.verifier["holds"][1].split()
        tries["latitude and longitude swapped"] = drawn(f"{title}, {longitude} {latitude}")
    if case == "Fictional scene":
        tries["every colour"] = drawn(f"{prompt}, {' '.join(image.COLOURS)}")
    if not lookups:
        looked = call("database", query=f"country of the city {title}")
        return tries | {
            "a needless search": [call("search", query=title), draw, right[-1]],
            "a needless look into the database": [looked, *right],
        }
    if "coordinates" in task.prompt:  # a search confirms what passages state
        tries["searched for what it knows"] = [call("search", query=prompt), draw, right[-1]]
    return tries | {
        "from memory": [draw, right[-1]],
        "looked up too late": [draw, *lookups, right[-1]],
        "everything that was found": drawn(f"{title} [1] {prompt} [2] 1234 5678"),
    }


@pytest.mark.parametrize("case", [case for case in ORDER if case != "No tools needed"])
def test_gold_passes_and_hacks_fail(case, lab, cases, tokenizer):
    task = cases[case]
    (t,) = lab.rollout([task], Says(tokenizer, *gold(task)))
    assert t.success == 1.0 and t.reward == 2.0
    for name, turns in hacks(task).items():
        (tried,) = lab.rollout([task], Says(tokenizer, *turns))
        assert tried.success == 0.0, f"{name} passes: {turns}"
        assert tried.reward < 2.0, f"{name} earns as much as gold"


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
    film, city, place = task.verifier["shown"]
    capital, point = city["value"], place["value"].replace(" ", ", ").replace("-", "−")
    looked_up = [
        call("database", query=f"country of the Film {film['row'][1].upper()}"),
        call("database", query=f"capital of the country {city['row'][1]}"),
        call("database", query=f"coordinates of the city {capital}"),
    ]
    prompt = f"A wide view of {capital} at {point}, in evening light"
    said = f"Here it is.\nAnswer: {name_of(prompt).split()[1]}"
    (t,) = lab.rollout([task], Says(tokenizer, *looked_up, call("generate_image", prompt=prompt), said))
    assert t.success == 1.0, t.why
    assert t.reward == 2.0, "whatever showed the facts"


class TestPictureEnvironment(EnvironmentConformance):
    factory = image.PictureEnvironment
    calls = [
        ToolCall("search", {"query": "capital of Peru"}), ToolCall("generate_image", {"prompt": "Lima"}),
        ToolCall("database", {"query": "capital of the country Peru"}),
    ]  # fmt: skip


HOSTILE = '<script>alert(1)</script><b>x</b>]]> & "quotes" \ud800\0\x1b, <img src=x onerror=alert(1)>, javascript:alert(1)'
PLACES = ["Paris, 48.85 2.35", "Ushuaia, −54.80 −68.30, blue", "99.9 500.0", ",", HOSTILE, "é漢字🙂" * 60]


def test_a_composed_picture_is_sound_and_its_text_is_text():
    for prompt in PLACES:
        svg = image.compose(prompt)
        root = ElementTree.fromstring(svg)
        assert svg == image.compose(prompt) and len(svg) < 8_000
        tags = {element.tag.split("}")[1] for element in root.iter()}
        assert tags <= {"svg", "rect", "path", "circle", "g", "text"}
        assert not any(name.startswith(("on", "href")) for element in root.iter() for name in element.attrib)
        marks = [c for c in root.findall(".//{*}circle") if c.get("r") == "4"]
        assert len(marks) == ("8." in prompt and "," in prompt), "a mark where there is a place"


@pytest.mark.parametrize(("name", "noise", "flaws", "light"), [
    ("image_noisy", 0.0, 0.3, "red"), ("image", 0.05, 0.02, "red"), ("image", 0.0, 0.02, "green"),
])  # fmt: skip
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
