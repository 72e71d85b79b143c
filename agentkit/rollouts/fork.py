"""Continue a stored trajectory from one of its turns, as it was or with another text there.

What stands before that turn is kept as token ids. A fresh environment is brought to the same state by making
the same calls; where a reply differs from the stored one it says so. Leaves out whether the edit is likely.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agentkit.records import DataError, Task, ToolCall, ToolResult, Trajectory
from agentkit.rollouts.chat import parse_turn, turn_ids
from agentkit.rollouts.loop import Factory, Limits, _families, _gathered, _Rollout
from agentkit.rollouts.policy import Policy, Request, Sample
from agentkit.rollouts.template_probe import end_of_turn
from agentkit.tools.cache import ToolCache
from agentkit.tools.environments import SYSTEM_PROMPT, CorpusEnvironment
from agentkit.tools.outages import Outages
from agentkit.tools.runtime import run_blocking

UNJUDGED = "not judged: fork was given no task"


def fork(
    trajectory: Trajectory,
    turn: int,
    policy: Policy,
    *,
    observation: str | Sequence[str] | None = None,
    text: str | None = None,
    n: int = 4,
    task: Task | None = None,
    environment: Factory | Mapping[str, Factory] = CorpusEnvironment,
    seed: int = 0,
    temperature: float = 1.0,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    system_prompt: str = SYSTEM_PROMPT,
    tool_failures: float = 0.0,
    tool_cache: ToolCache | None = None,
) -> list[Trajectory]:
    """``n`` continuations of a trajectory behind its turn number ``turn``, counted from 0.

    Args:
        observation: what its tools reply there in place of what they said; a list where it makes several
            calls.
        text: what the policy says there in place of what it said, its end token or not; the calls in it are
            made. It is no action of the policy, so its tokens have action_mask 0.
        task: the task, for the verdict; without it the continuations are not scored.
        environment: as for ``rollout``, and so are the other arguments. ``lab.fork`` gives them all.

    Raises:
        DataError: there is no such turn, nothing follows it, or the calls before it get other replies now.
    """
    turn, replies = _checked(trajectory, turn, observation, text)
    for called in (True, False):  # a stored turn has the token that ends it
        text = text and text.removesuffix(end_of_turn(policy.tokenizer, called))
    if task and task.id != trajectory.task_id:
        raise DataError(f"the trajectory is one of task {trajectory.task_id}, and task is {task.id}")
    judged = task or Task(trajectory.task_id, "", "")
    codec, make = _families([judged], environment, policy.tokenizer, system_prompt)[judged.family]
    one = partial(
        _Fork, judged, codec=codec, factory=make, policy=policy, seed=seed, temperature=temperature,
        limits=limits, cache=tool_cache, source=trajectory, at=turn, replies=replies, text=text,
    )  # fmt: skip
    outages = partial(Outages, tool_failures, f"{trajectory.seed} {trajectory.task_id}")
    found = run_blocking(_gathered([one(i, outages=outages()) for i in range(n)], policy, None))
    return found if task else [replace(t, success=None, why=UNJUDGED) for t in found]


def _checked(
    trajectory: Trajectory, turn: int, observation: str | Sequence[str] | None, text: str | None
) -> tuple[int, Sequence[str] | None]:
    """The turn's number from the front, and a reply for each of its calls."""
    if text is not None and observation is not None:
        raise DataError("give a text or an observation: a text has its own calls made")
    if not -len(trajectory.turns) <= turn < len(trajectory.turns):
        raise DataError(f"the trajectory has {len(trajectory.turns)} turns, so there is no turn {turn}")
    turn %= len(trajectory.turns)
    calls = len(trajectory.turns[turn].results)
    replies = [observation] if isinstance(observation, str) else observation
    if text is None and not calls:
        raise DataError(f"turn {turn} (from 0) calls no tool, so nothing follows it: give another text")
    if text is None and replies is not None and len(replies) != calls:
        raise DataError(f"turn {turn} (from 0) makes {calls} calls, so it needs as many observations")
    return turn, replies


@dataclass(slots=True)
class _Fork(_Rollout):
    """One continuation."""

    source: Trajectory | None = None
    at: int = 0
    replies: Sequence[str] | None = None
    text: str | None = None
    written: tuple[int, int] = field(default=(0, 0))  # tokens that nobody sampled

    async def trajectory(self) -> Trajectory:
        done = await super(_Fork, self).trajectory()
        start, end = self.written
        mask = (*done.action_mask[:start], *[0] * (end - start), *done.action_mask[end:])
        return replace(done, action_mask=mask)

    async def _begin(self) -> None:
        await self._reset()
        self.prompt = list(self.source.prompt_ids)
        kept = self.at if self.text is not None else self.at + 1
        for number, turn in enumerate(self.source.turns[:kept] if not self.failure else ()):
            start, end = turn.span
            ids, logprobs = self.source.completion_ids, self.source.old_logprobs
            self.completion.sampled(list(ids[start:end]), list(logprobs[start:end]))
            self.completion.mask[start:end] = self.source.action_mask[start:end]  # perhaps of a fork itself
            results = tuple([await self._again(result, number) for result in turn.results])
            edited = self.replies is not None and number == self.at
            if edited:
                pairs = zip(results, self.replies, strict=True)
                results = tuple(replace(result, observation=reply) for result, reply in pairs)
            self.turns.append(replace(turn, results=results))
            if edited or number + 1 == len(self.source.turns):
                self._observe(results, last=number + 2 == self.limits.max_turns)
            else:
                self.completion.observed(list(ids[end : self.source.turns[number + 1].span[0]]))

    async def _again(self, result: ToolResult, number: int) -> ToolResult:
        """The call made again; it must get the reply that is stored."""
        if not result.name:  # it could not be read as a call
            return result
        again = await self._call(ToolCall(result.name, result.arguments))
        if again.observation != result.observation:
            raise DataError(
                f"turn {number}: {result.name} replied {result.observation[:80]!r}, and now "
                f"{again.observation[:80]!r}, so the trajectory cannot be continued from there"
            )
        return again

    async def _sample(self, request: Request) -> Sample:
        if self.text is None or len(self.turns) > self.at:
            own = *request.seed, self.at  # the numbers of a rollout would give the original again
            return await super(_Fork, self)._sample(replace(request, seed=own))
        said = parse_turn(self.text, self.codec.format, self.codec.tools)
        ids = turn_ids(self.codec.tokenizer, request.ids, self.text, bool(said.calls or said.errors))
        self.written = len(self.completion.ids), len(self.completion.ids) + len(ids)
        return Sample(ids, [0.0] * len(ids))
