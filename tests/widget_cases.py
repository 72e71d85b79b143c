"""Tasks and trajectories that the tests of the views show."""

from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.views.widgets import compare_trajectories
from agentkit.views.widgets.trajectories import note_rows

TASKS = [
    Task("t0", "How many people live in Peru?", "33", family="A", difficulty="easy"),
    Task("t1", "Who directed Alien?", "Ridley Scott", family="B", difficulty="hard"),
    Task("t2", "What is the capital of Chad?", "N'Djamena", family="B", difficulty="easy"),
    Task("unused", "?", "?", family="C"),
]


def trajectory(task_id, success, *, sample=0, policy="sft", turns=None, answer="1", components=None, **more):
    """A trajectory whose tokens do not matter."""
    fields = {
        "prompt_ids": (7,), "completion_ids": (1, 2, 3), "action_mask": (1,) * 3, "old_logprobs": (-0.5,) * 3,
        "turns": turns or (Turn(f"The answer is {answer}.<|im_end|>", (0, 3)),), "stop_reason": StopReason.ANSWER,
        "answer": answer, "success": success, "components": components or {},
    }  # fmt: skip
    return Trajectory(task_id, policy, sample, 0, **(fields | more))


def traced(**changes):
    """Two prompt tokens, a turn of two, an observation of one, a turn of two."""
    fields = {
        "prompt_ids": (8, 9), "completion_ids": (1, 2, 3, 4, 5), "action_mask": (1, 1, 0, 1, 1), "old_logprobs": (-0.1, -0.2, 0.0, -0.3, -0.4),
        "turns": (Turn("ab", (0, 2)), Turn("de", (3, 5))), "advantage": 0.5,
    }  # fmt: skip
    return trajectory("t0", 1.0, **(fields | changes))


def call(query, observation="seen", ok=True, text="Let me look.\n<tool_call>\n{}\n</tool_call><|im_end|>"):
    """A turn that searches."""
    return Turn(text, (0, 1), (ToolResult("search", {"query": query}, observation, ok),))


def policies():
    """Two policies on three tasks: flipped to right, flipped to wrong, both wrong."""
    one = (call("peru"), call("lima"), Turn("30", (0, 1)))
    two = (call("peru"), call("peru people"), Turn("33", (0, 1)))
    failed = (call("chad", "search failed", ok=False), Turn("x", (0, 1)))
    right, wrong = ({"correct": value, "format": None} for value in (1.0, 0.0))
    sft = [
        trajectory("t0", 0.0, turns=one, answer="30", why="30 is not 33"),
        trajectory("t0", 1.0, sample=1),
        trajectory("t0", 0.0, sample=2),
        trajectory("t1", 1.0, reward=0.98, components=right),
        trajectory("t2", 0.0, turns=failed),
    ]
    grpo = [
        trajectory("t0", 1.0, policy="grpo", turns=two, answer="33"),
        trajectory("t1", 0.0, policy="grpo", reward=0.0, components=wrong),
        trajectory("t2", 0.0, policy="grpo", answer=None, stop_reason=StopReason.TURN_LIMIT),
    ]
    return {"sft": sft, "grpo": grpo}


def widget(**options):
    """The two policies side by side."""
    return compare_trajectories(TASKS, policies(), **options)


def group():
    """Four rollouts of one task at one step; sample 2 is the best and sample 1 the worst."""
    good = (call("peru"), call("peru people"), Turn("33", (0, 1)))
    bad = (call("peru"), call("lima", "search failed", ok=False), Turn("30", (0, 1)))
    zero, one, common = {"correct": 0.0}, {"correct": 1.0}, {"step": 4, "policy": "grpo"}
    worst = {"reward": -0.2, "advantage": -0.9, "components": zero, "turns": bad, "answer": "30"}
    best = {"reward": 1.0, "advantage": 1.3, "components": one, "turns": good, "answer": "33"}
    return [
        trajectory("t0", 0.0, sample=0, reward=0.1, advantage=-0.4, components=zero, **common),
        trajectory("t0", 0.0, sample=1, **worst, **common),
        trajectory("t0", 1.0, sample=2, **best, **common),
        trajectory("t0", None, sample=3, **common),
    ]


def read_notes(run):
    """A run's notes by task id, those that were taken back left out."""
    return {row["task_id"]: row["text"] for row in note_rows(run) if row["text"]}
