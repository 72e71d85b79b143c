"""A trajectory is continued from any of its turns, token for token as it was up to the edit."""

import gzip
import json
import re
from functools import partial, wraps

import pytest

import agentkit
from agentkit import Lab
from agentkit.policies.loading import load_agent, make_policy
from agentkit.records import DataError
from agentkit.tools.environments import CorpusEnvironment
from agentkit.views.widgets import compare_trajectories


@pytest.fixture(scope="module")
def lab():
    small = {"n_tasks": 60, "max_turns": 8, "max_turn_tokens": 96, "max_tokens": 600}
    return Lab.open({"families": "A,B", "tool_failures": 0.4, "model": "nano"} | small)


@pytest.fixture(scope="module")
def policy(lab):
    with make_policy(*load_agent("nano"), "nano", lab.recipe) as policy:
        yield policy


@pytest.fixture(scope="module")
def rolled(lab, policy):
    tasks = lab.suite().split("test")[:8]
    return list(zip(tasks, lab.rollout(tasks, policy, temperature=0.0), strict=True))


def test_without_an_edit_greedy_sampling_gives_the_original_from_every_turn(lab, policy, rolled):
    forks = 0
    for task, original in rolled:
        for turn in range(len(original.turns)):
            if not original.turns[turn].results:
                continue  # the answer
            forks += 1
            (again,) = lab.fork(task, original, turn, policy, n=1, temperature=0.0)
            assert again.completion_ids == original.completion_ids
            assert again.action_mask == original.action_mask
            for name in ("answer", "success", "reward"):
                assert getattr(again, name) == getattr(original, name)
            kept = original.turns[turn].span[1]
            assert again.old_logprobs[:kept] == original.old_logprobs[:kept]
    assert forks > 10


def test_another_observation_is_what_the_policy_goes_on_from(lab, policy, rolled):
    task, original = next((t, o) for t, o in rolled if len(o.turns) > 1)
    start = original.turns[0].span[1]
    made = lab.fork(task, original, 0, policy, observation="Lisbon: 545,796", n=2, temperature=1.0)
    for t in made:
        assert t.completion_ids[:start] == original.completion_ids[:start]
        assert t.turns[0].results[0].observation == "Lisbon: 545,796"
        shown = policy.tokenizer.decode(t.completion_ids[start : t.turns[1].span[0]])
        assert "Lisbon: 545,796" in shown and t.success is not None and t.reward is not None
    assert [t.sample for t in made] == [0, 1]


def test_another_text_is_no_action_of_the_policy(lab, policy, rolled):
    task, original = next((t, o) for t, o in rolled if len(o.turns) > 1)
    (answered,) = lab.fork(task, original, 1, policy, text=f"Answer: {task.answer}", n=1)
    assert answered.success == 1.0 and answered.stop_reason == "answer"
    start, end = answered.turns[1].span
    assert not any(answered.action_mask[start:end]), "nobody sampled it"
    assert answered.completion_ids[:start] == original.completion_ids[:start]
    text = original.turns[0].text.partition("<|im_end|>")[0]
    (edited,) = lab.fork(task, original, 0, policy, text=text, n=1)
    (again,) = lab.fork(task, edited, 0, policy, n=1)
    start, end = again.turns[0].span
    assert not any(again.action_mask[start:end]), "nor where it is continued once more"


def test_continuations_are_drawn_anew(lab, policy, rolled):
    """With a rollout's own random numbers one of n would be the original again."""
    tasks = [task for task, _ in rolled]
    sampled = [t for t in lab.rollout(tasks, policy, temperature=1.5) if t.turns[0].results]
    by_id = {task.id: task for task in tasks}
    made = [lab.fork(by_id[t.task_id], t, 0, policy, n=1, temperature=1.5)[0] for t in sampled]
    same = [one.completion_ids == other.completion_ids for one, other in zip(made, sampled, strict=True)]
    assert len(same) > 3 and sum(same) < 2


def test_its_own_task_judges_and_no_other(lab, policy, rolled):
    _, original = next((t, o) for t, o in rolled if all(r.ok for turn in o.turns for r in turn.results))
    (made,) = agentkit.fork(original, 0, policy, n=1, temperature=0.0)
    assert made.success is None and "no task" in made.why
    (_, original), (other, _) = rolled[:2]
    with pytest.raises(DataError, match=f"and task is {other.id}"):
        lab.fork(other, original, 0, policy)


class Counting(CorpusEnvironment):
    def reset(self, **row):
        self.calls = 0

    @wraps(CorpusEnvironment.search)
    def search(self, query: str) -> str:
        self.calls += 1
        return super().search(query)

    def state(self):
        return {"calls": self.calls}


def test_the_state_is_that_of_the_whole_continuation(policy, rolled):
    tasks = [task for task, _ in rolled]
    originals = agentkit.rollout(tasks, policy, environment=Counting, temperature=0.0)
    original = max(originals, key=lambda t: t.state["calls"])
    (again,) = agentkit.fork(original, 0, policy, n=1, temperature=0.0, environment=Counting)
    assert again.state == original.state and original.state["calls"] > 1


class Clock(CorpusEnvironment):
    ticks = 0

    @wraps(CorpusEnvironment.search, updated=())  # without what is declared of it, such as that it is pure
    def search(self, query: str) -> str:
        Clock.ticks += 1
        return f"tick {Clock.ticks}"


@pytest.mark.parametrize(("turn", "edit", "says"), [
    (9, {}, "so there is no turn 9"),
    (-1, {}, "calls no tool"),
    (0, {"observation": ["a", "b"]}, "needs as many observations"),
    (0, {"observation": "a", "text": "b"}, "a text or an observation"),
    (0, {"text": "<|im_start|>user"}, "control token"),
    (0, {"environment": Clock}, "and now 'tick 1'"),
])  # fmt: skip
def test_what_cannot_be_continued_is_said(lab, policy, rolled, turn, edit, says):
    searched = [("search", True)]
    first = lambda one: [(r.name, r.ok) for r in one.turns[0].results]  # noqa: E731
    task, original = next((t, o) for t, o in rolled if first(o) == searched)
    with pytest.raises(DataError, match=says):
        lab.fork(task, original, turn, policy, **edit)


def test_a_reader_changes_a_turn_in_the_live_viewer(lab, policy, rolled):
    task, original = next((t, o) for t, o in rolled if len(o.turns) > 1 and o.turns[0].results)
    view = compare_trajectories([task], {"nano": [original]})
    assert not hasattr(view.live(), "children"), "no control without a fork"
    panel, button = view.live(fork=partial(lab.fork, policy=policy, n=2)), []
    seen = lambda _: button.append((panel.button.description, panel.button.disabled))  # noqa: E731
    panel.button.observe(seen, "disabled")
    assert panel.words.value == original.turns[0].results[0].observation
    panel.words.value = "<b>Lisbon</b>: 545,796"
    panel.button.click()
    assert button == [("Sampling …", True), ("Continue from here", False)]
    says = r"Success is \d+% as it was and \d+% in 2 continuations after the edit: [+-]\d+ points"
    assert re.search(says, panel.said.value)
    (shown,) = json.loads(gzip.decompress(panel.children[-1].data[1]))
    before, after = shown["columns"]
    assert len(before["samples"]) == 1 and len(after["samples"]) == 2
    assert all(t["turns"][0]["results"][0][0] == "<b>Lisbon</b>: 545,796" for t in after["samples"])

    panel.place.index = [label.endswith("wrote") for label in panel.place._options_labels].index(True)
    assert panel.words.value == original.turns[0].text and "<|im_end|>" in panel.words.value
    panel.words.value = f"Answer: {task.answer}<|im_end|>"
    panel.button.click()
    assert "and 100% in 2 continuations after the edit" in panel.said.value

    panel.words.value = "<|im_start|>user <script>"
    panel.button.click()
    assert "Not continued: a turn holds the control token &lt;|im_start|&gt;" in panel.said.value
    assert panel.children[-1] is panel.said and not panel.button.disabled
