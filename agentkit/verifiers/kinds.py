"""The kinds of verifier by name, yours among them, and the one way to ask one: check and verify.

An answer in words, a number or mathematics is read by the protocol (protocol.py), whoever asks. A hedge
("1 or 2") and an empty answer are wrong; None means that the verifier itself could not judge (gold data it
cannot read, a judge that does not answer): left out of rewards and counted, never 0. Leaves out rewards for
anything but the answer and the way to it: those are agentkit.rewards.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from numbers import Real
from typing import Any

from agentkit.records import Score, Task, Trajectory, Unscored
from agentkit.runs.labfile import blame, check_takes, takes
from agentkit.tools.execution import settled
from agentkit.trajectories import results_of, verifier_kind
from agentkit.verifiers.judge import judge
from agentkit.verifiers.mathematics import symbolic
from agentkit.verifiers.numbers import numeric
from agentkit.verifiers.patterns import regex
from agentkit.verifiers.programs import code
from agentkit.verifiers.protocol import MAX_CODE, Reading, final_answer, whole_answer
from agentkit.verifiers.words import exact

Verifier = Callable[..., Score | float]  # (answer, gold, *, trajectory=None, state=None, **options)
KINDS: dict[str, Verifier] = {
    "exact": exact,
    "numeric": numeric,
    "regex": regex,
    "symbolic": symbolic,
    "code": code,
    "judge": judge,
}
SHIPPED = frozenset(KINDS)
_BY_PROTOCOL = frozenset(("exact", "numeric", "symbolic"))  # the others are shown all of an answer


def register(kinds: Mapping[str, Verifier]) -> None:
    """Add verifiers of your own, which tasks then name; a kind of yours that is there already is replaced.

    Args:
        kinds: kind -> function (answer, gold, *, trajectory=None, **options) giving a Score or a number in
            [0, 1]. A function without the parameter ``trajectory`` is given none. One with the parameter
            ``state`` judges the environment's state at the end: it is asked without an answer too ("").

    Raises:
        ValueError: a shipped kind's name, or something that cannot be called like this.
    """
    for kind, verifier in kinds.items():
        if kind in SHIPPED:
            raise ValueError(f"the verifier {kind!r} ships with agentkit: give yours another name")
        check_takes(f"the verifier {kind!r}", verifier, "answer", "gold")
    KINDS.update(kinds)


def check(
    kind: str,
    answer: str | None,
    gold: str,
    *,
    trajectory: Trajectory | None = None,
    question: str = "",
    **options: Any,
) -> Score:
    """Score one answer against one gold answer.

    Args:
        kind: one of KINDS.
        answer: the policy's answer; None and blank are wrong, but where the state is judged.
        gold: the gold answer.
        trajectory: how the policy came to it, for verifiers that look at that.
        question: what was asked, for verifiers that look at that.
        **options: the kind's own, such as ``abs_tol`` or ``aliases``, and ``box`` (``final_answer``).

    Raises:
        ValueError: unknown kind, or an option that a shipped kind does not take.
    """
    if kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise ValueError(
            f"unknown verifier kind {kind!r}: use one of {known}, or open the lab that has it (Lab.of(run))"
        )
    state, by_state = trajectory and trajectory.state, judges_state(kind)
    if by_state and state is None:
        return Score(
            None, f"{kind!r} judges the state, and there is none: give the environment a method state()"
        )
    if not by_state and (not isinstance(answer, str) or not answer.strip()):
        return Score(0.0, "no answer")
    is_read = kind in _BY_PROTOCOL
    read = final_answer(answer, box=options.pop("box", "")) if is_read else Reading(answer or "")
    if read.answer is None:
        return Score(0.0, f"no answer: {read.why}")
    if not by_state and len(answer) > MAX_CODE:
        return Score(0.0, f"an answer of {len(answer)} characters; {MAX_CODE} is the limit")
    if gold is None:
        return Score(None, "there is no gold answer")
    context = {"trajectory": trajectory, "question": question or None, "state": deepcopy(state)}
    options |= {n: held for n, held in context.items() if held is not None and takes(KINDS[kind], n)}
    return _asked(kind, partial(KINDS[kind], read.answer, str(gold), **options))


def _asked(kind: str, ask: Callable[[], object]) -> Score:
    """What a verifier says; one that fails must not look like a wrong answer."""
    try:
        return _as_score(kind, ask() if kind in SHIPPED else settled(ask))
    except Unscored as error:
        return Score(None, str(error))
    except (Exception, SystemExit) as error:
        if kind in SHIPPED and isinstance(error, TypeError | ValueError):  # an option: the author's mistake
            raise ValueError(f"verifier {kind!r}: {error}") from None
        return Score(None, f"verifier failed: {blame(error):.200}")


def answer_of(task: Task, text: str) -> Reading:
    """The answer of a last turn, as the task's verifier wants it; or why there is none."""
    if verifier_kind(task) in _BY_PROTOCOL:
        return final_answer(text, box=task.verifier.get("box", ""))
    return whole_answer(text)


def reads_by_protocol(task: Task) -> bool:
    """Whether the verifier takes an answer from its place only: the last line or a lone box."""
    return verifier_kind(task) in _BY_PROTOCOL and task.verifier.get("box") != "sentence"


def looks_at_calls(kind: str) -> bool:
    """Whether this kind of verifier looks at the trajectory, and not at the answer alone."""
    return kind in KINDS and takes(KINDS[kind], "trajectory")


def judges_state(kind: str) -> bool:
    """Whether this kind of verifier judges the environment's state at the end, whatever was answered."""
    return kind in KINDS and takes(KINDS[kind], "state")


def _as_score(kind: str, result: object) -> Score:
    """A verifier's result as a score; None for what is no number in [0, 1]."""
    score = result if isinstance(result, Score) else Score(result)
    if score.value is None and score.why:
        return score
    if not isinstance(score.value, Real) or not 0.0 <= score.value <= 1.0:  # NaN is not
        return Score(
            None, f"the verifier {kind!r} gave {str(result)[:80]}, not a Score or a number in [0, 1]"
        )
    return Score(float(score.value), score.why)


def verify(task: Task, answer: str | Trajectory | None) -> Score:
    """Score an answer, or a trajectory and its answer, against a task's gold answer with the task's verifier.

    A trajectory that never got a reply from a tool in ``meta["required_tools"]`` is wrong, whatever it
    answers.
    """
    trajectory = answer if isinstance(answer, Trajectory) else None
    if trajectory is not None:
        answer = trajectory.answer
        used = {result.name for result in results_of(trajectory) if result.ok}
        if unused := set(task.meta.get("required_tools", ())) - used:
            return Score(0.0, f"did not use {', '.join(sorted(unused))}, which the task requires")
    options = dict(task.verifier)
    kind = options.pop("kind", None)
    if kind not in SHIPPED:  # one of yours may change what it is given, which is the suite's
        options = deepcopy(options)
    options.setdefault("question", task.prompt)
    if wrong := {"answer", "gold", "trajectory", "state"} & options.keys():
        raise ValueError(f"no option of a verifier may be called {min(wrong)!r}, which it is given anyway")
    return check(kind, answer, task.answer, trajectory=trajectory, **options)
