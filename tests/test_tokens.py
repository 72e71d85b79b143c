"""Token records: every way a batch can be wrong is named and a right one passes; log-probabilities."""

import math
from dataclasses import replace

import pytest
import torch

from agentkit.records import StopReason, Trajectory, Turn
from agentkit.rollouts.tokens import batch_faults, token_logprobs

TEXTS = {1: "a", 2: "b", 3: "<end>", 7: "seen"}


def trajectory(task="t", sample=0, **changes):
    turns = (Turn("ab<end>", (0, 3)), Turn("b<end>", (5, 7)))
    found = Trajectory(
        task, "p", sample, 0, (4, 4), (1, 2, 3, 7, 7, 2, 3), (1, 1, 1, 0, 0, 1, 1), (-0.1, -0.2, -0.3, 0.0, 0.0, -1.0, 0.0),
        turns, StopReason.ANSWER,
    )  # fmt: skip
    return replace(found, **changes)


def batch(*changed):
    """Two groups of two; the first trajectory with changes."""
    first = trajectory(**dict(changed))
    return [first, trajectory(sample=1), trajectory("u"), trajectory("u", sample=1)]


def faults(trajectories, rows=None, masks=None):
    rows = rows or [t.completion_ids for t in trajectories]
    masks = masks or [t.action_mask for t in trajectories]
    spelt = lambda ids: "".join(TEXTS[i] for i in ids)  # noqa: E731
    return batch_faults(trajectories, 2, rows=rows, masks=masks, decode=spelt)


def test_a_right_batch_has_no_fault():
    good = batch()
    assert faults(good) == []
    masks = [[0] * 7, *(t.action_mask for t in good[1:])]
    assert faults(good, masks=masks) == [], "left out of the loss on purpose"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("action_mask", (1, 1, 1, 0, 0, 1), "action_mask has 6 values for 7 completion tokens"),
        ("old_logprobs", (-0.1,) * 8, "old_logprobs has 8 values for 7 completion tokens"),
        ("action_mask", (1, 1, 1, 1, 0, 1, 1), "the action mask is wrong at 1 of 9 tokens (the first is 5)"),
        ("action_mask", (1, 0, 1, 0, 0, 1, 0), "the action mask is wrong at 2 of 9 tokens (the first is 3)"),
        ("old_logprobs", (-0.1, float("nan"), -0.3, 0.0, 0.0, -1.0, 0.0), "not finite or above 0"),
        ("completion_ids", (1, 1, 3, 7, 7, 2, 3), "turn 0's tokens do not spell its text"),
        ("turns", (Turn("ab<end>", (0, 3)), Turn("b<end>", (5, 9))), "turn 1 spans [5, 9) of 7"),
        ("task_id", "v", "trajectories of several tasks (t, v) are one group"),
        ("prompt_ids", (4,), "a group of task t holds different prompts"),
        ("sample", 1, "a group of task t holds one sample twice"),
    ],
)
def test_each_fault_is_named_with_its_place(field, value, said):
    found = faults(batch((field, value)))
    assert len(found) == 1 and said in found[0], found
    assert "trajectory 0 (task t, sample 0)" in found[0] or "group" in found[0]


def test_ids_or_masks_that_changed_on_the_way_to_the_update_are_named():
    good = batch()
    rows, masks = [list(t.completion_ids) for t in good], [list(t.action_mask) for t in good]
    rows[2] = [1, 1, *rows[2][2:]]
    masks[3] = [1, *masks[3][:-1]]  # as many, one place on
    assert [fault.split(":")[0] for fault in faults(good, rows=rows, masks=masks)] == [
        "trajectory 2 (task u, sample 0)",
        "trajectory 3 (task u, sample 1)",
    ]


def test_a_torn_group_is_named():
    assert faults(batch()[:3]) == ["3 trajectories are no whole number of groups of 2."]
    assert len(faults([batch()[i] for i in (0, 2, 1, 3)])) == 2


def test_log_probabilities_of_given_tokens_and_entropies():
    """Two tokens of which the first is e times as likely: 1 nat apart, half of that at temperature 2."""
    logits = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    found, entropies = token_logprobs(logits, torch.tensor([0, 1]), entropy=True)
    odds = 1 / (1 + math.exp(-1))
    assert found.tolist() == pytest.approx([math.log(odds), math.log(0.5)])
    assert entropies[1].item() == pytest.approx(math.log(2))
    warm, nothing = token_logprobs(logits, torch.tensor([0, 1]), temperature=2.0)
    assert warm[0].item() == pytest.approx(math.log(1 / (1 + math.exp(-0.5)))) and nothing is None
