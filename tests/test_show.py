"""A trajectory shows itself: as text, in a notebook, and while it is rolled out."""

import json
import subprocess
import sys

import agentkit
from agentkit import StopReason, Trajectory, Turn
from agentkit.records import ToolResult
from agentkit.views.show import as_html, as_text, turn_text

REPLY = ToolResult("search", {"query": "x"}, "<script>alert(1)</script> 42", ok=True)
ONE = Trajectory(
    "A-1", "grpo", 0, 1, (1, 2), (3, 4, 5), (1, 0, 1), (0.0, 0.0, 0.0),
    turns=(Turn("look it up", (0, 1), (REPLY,)), Turn("Answer: 42", (2, 3))),
    stop_reason=StopReason.ANSWER, answer="42", success=1.0, components={"correctness": 1.0}, reward=1.1,
)  # fmt: skip


def test_as_text(capsys):
    assert as_text(ONE).splitlines() == [
        "look it up",
        "    -> <script>alert(1)</script> 42",
        "Answer: 42",
        'ended with an answer: right, reward 1.1 {"correctness": 1.0}',
    ]
    assert agentkit.show(ONE) is None, "no notebook"
    assert capsys.readouterr().out == as_text(ONE) + "\n"


def test_nothing_that_a_model_wrote_is_markup():
    page = as_html(ONE)
    assert "<script>" not in page and "&lt;script&gt;" in page and "Answer: 42" in page


CELL = """
import json
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import agentkit
from agentkit import StopReason, Trajectory, Turn
one = Trajectory("A-1", "p", 0, 1, (1,), (2,), (1,), (0.0,), (Turn("<b>hm</b>", (0, 1)),), StopReason.ANSWER)
print(json.dumps(shell.display_formatter.format(one)[0]))
"""


def test_ipython_shows_it_as_html():
    told = subprocess.run([sys.executable, "-c", CELL], capture_output=True, text=True, check=True).stdout
    shown = json.loads(told.splitlines()[-1])
    assert "&lt;b&gt;hm&lt;/b&gt;" in shown["text/html"] and "not judged" in shown["text/html"]


def test_turns_can_be_watched_as_they_end_and_a_policy_needs_no_run():
    keys = {"n_tasks": 40, "families": "A", "max_turns": 4, "max_turn_tokens": 64, "max_tokens": 300}
    lab = agentkit.Lab.open(keys)
    task, seen = lab.suite().split("test")[0], []
    with lab.policy() as policy:
        (made,) = lab.rollout([task], policy, on_turn=seen.append)
    assert [turn.text for turn in seen] == [turn.text for turn in made.turns] and seen
    assert [turn.results for turn in seen] == [turn.results for turn in made.turns]
    assert turn_text(seen[0]).startswith(seen[0].text.strip()[:20])
