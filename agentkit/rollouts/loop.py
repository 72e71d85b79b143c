"""The one rollout loop: every trajectory is a coroutine that alternates policy turns and tool calls.

There is no barrier per turn: a trajectory that waits for a tool does not hold up the others. Tokens are kept
as they were sampled; tool replies are appended as ids with action_mask 0. Scoring happens at the end, through
the task's verifier. Every
wait is bounded: a call's by its tool's time limit, all of them by the trajectory's deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from agentkit.records import Score, StopReason, Task, ToolCall, ToolResult, Trajectory, Turn
from agentkit.rollouts.chat import MAX_OBSERVATION, ChatCodec
from agentkit.rollouts.policy import Policy, Request
from agentkit.sandbox import current_tier
from agentkit.tools.cache import ToolCache
from agentkit.tools.environments import SYSTEM_PROMPT, CorpusEnvironment
from agentkit.tools.runtime import (
    call_method,
    in_thread,
    malformed,
    reset,
    run_blocking,
    run_call,
    tool_schemas,
)
from agentkit.trajectories import verifier_kind
from agentkit.verifiers import final_answer, verify

_NUMBERS = count()  # of trajectories, in this process
Factory = Callable[[], object]  # of environments
VERDICT_S = 120.0  # a verifier's own limits are shorter; this one is for a verifier that has none
CODE_TOOL = "python"
LAST_TURN = "No turns are left for tools: answer now."


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one trajectory."""

    max_turns: int = 10  # policy calls
    max_turn_tokens: int = 128  # sampled in one turn
    max_tokens: int = 1024  # completion tokens, tool replies included
    tool_timeout_s: float = 10.0  # of a tool that declares no limit of its own
    trajectory_timeout_s: float = 600.0
    max_observation: int = MAX_OBSERVATION  # tokens of one tool reply; a longer one is cut, visibly


async def arollout(
    tasks: Sequence[Task],
    policy: Policy,
    *,
    environment: Factory | Mapping[str, Factory] = CorpusEnvironment,
    group_size: int = 1,
    seed: int = 0,
    temperature: float = 1.0,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    system_prompt: str = SYSTEM_PROMPT,
    tool_format: str | None = None,
    tool_cache: ToolCache | None = None,
    step: int | None = None,
    progress: str | None = None,
) -> list[Trajectory]:
    """Roll out ``group_size`` trajectories a task, group by group in the order of ``tasks``.

    Args:
        tasks: P tasks.
        policy: samples the turns.
        environment: makes one environment a trajectory (TRL's ``environment_factory`` form); or one such for
            each family.
        group_size: G trajectories a task.
        seed: fixes every random number, whatever the timing.
        temperature: of sampling; 0 is greedy.
        limits: turns, tokens and seconds.
        system_prompt: what the policy is told first, unless its environment has a ``system_prompt`` of its
            own.
        tool_format: how the policy writes calls (agentkit.rollouts.calls.FORMATS); None reads it from its
            chat template.
        tool_cache: answers of tools declared pure; None asks them every time.
        step: recorded in the trajectories.
        progress: label of a progress bar; None shows none.

    Returns:
        P * G trajectories, each with a stop_reason, an answer where there is one, and the verifier's verdict.
        Where an environment has ``get_reward``, what it gives stands among the components under the
        environment's class name.
    """
    factories = {
        t.family: environment[t.family] if isinstance(environment, Mapping) else environment for t in tasks
    }
    codecs = {}
    for family, make in factories.items():
        around = make()
        prompt = getattr(around, "system_prompt", system_prompt)
        codecs[family] = ChatCodec(policy.tokenizer, prompt, tool_schemas(around), tool_format)
    places = asyncio.Semaphore(policy.in_flight or len(tasks) * group_size)

    async def one(task: Task, index: int) -> Trajectory:
        async with places:
            number = next(_NUMBERS)
            policy.begin(number)
            try:
                codec, around = codecs[task.family], factories[task.family]()
                walk = _Walk(
                    task, index, number, policy, codec, around, seed, temperature, limits, tool_cache
                )
                trajectory = await walk.trajectory()
            finally:
                policy.end(number)
        bar.add(trajectory)
        return replace(trajectory, step=step)

    with _Bar(progress, len(tasks) * group_size) as bar:
        walks = [asyncio.ensure_future(one(task, index)) for task in tasks for index in range(group_size)]
        try:
            return list(await asyncio.gather(*walks))
        finally:
            for walk in walks:  # where one has failed
                walk.cancel()
            await asyncio.gather(*walks, return_exceptions=True)
            if tool_cache is not None:
                tool_cache.flush()


def rollout(tasks: Sequence[Task], policy: Policy, **options: Any) -> list[Trajectory]:
    """``arollout`` for callers without an event loop, or (as in a notebook) with a running one."""
    return run_blocking(arollout(tasks, policy, **options))


@dataclass(slots=True)
class _Walk:
    """One trajectory from prompt to verdict; ``ids``, ``mask`` and ``logprobs`` stay equally long."""

    task: Task
    index: int  # in its group
    number: int
    policy: Policy
    codec: ChatCodec
    environment: Any
    seed: int
    temperature: float
    limits: Limits
    cache: ToolCache | None
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None

    async def trajectory(self) -> Trajectory:
        """Reset, turns, verdict."""
        extra = await reset(self.environment, self.task, self.limits.tool_timeout_s)
        prompt = list(self.codec.prompt_ids(self.task.prompt + extra))
        stop = StopReason.TURN_LIMIT
        try:
            async with asyncio.timeout(self.limits.trajectory_timeout_s) as clock:
                stop = await self._turns(prompt)
        except TimeoutError:
            if not clock.expired():
                raise
            stop = StopReason.TIME_LIMIT
        done = Trajectory(
            self.task.id,
            self.policy.name,
            self.index,
            self.seed,
            prompt_ids=tuple(prompt),
            completion_ids=tuple(self.ids),
            action_mask=tuple(self.mask),
            old_logprobs=tuple(self.logprobs),
            turns=tuple(self.turns),
            stop_reason=stop,
            answer=self.answer,
        )
        try:
            verdict = await in_thread(partial(_verdict, self.task, done), VERDICT_S)
        except TimeoutError:
            verdict = Score(None, f"the verifier did not answer within {VERDICT_S:g} s")
        done = replace(done, success=verdict.value, why=verdict.why, sandbox=_tier(self.task, done))
        return replace(done, components=await self._own_reward())

    async def _turns(self, prompt: list[int]) -> StopReason:
        results: tuple[ToolResult, ...] = ()
        limits = self.limits
        for turn in range(limits.max_turns):
            budget = min(limits.max_turn_tokens, limits.max_tokens - len(self.ids))
            if budget <= 0:
                return StopReason.TOKEN_LIMIT
            start = time.perf_counter()
            seed = _seed(self.seed, self.task, self.index, turn)
            request = Request(
                self.task,
                self.number,
                turn,
                prompt + self.ids,
                seed,
                budget,
                self.temperature,
                results,
                self.codec.format,
            )
            sample = await self.policy.sample(request)
            end = self.codec.turn_end(sample.ids)
            ids = sample.ids[:end]
            self._append(ids, 1, sample.logprobs[:end])
            span = len(self.ids) - len(ids), len(self.ids)
            self.turns.append(Turn(self.codec.decode(ids), span, seconds=time.perf_counter() - start))
            if end is None:
                return (
                    StopReason.TRUNCATED_TURN if budget == limits.max_turn_tokens else StopReason.TOKEN_LIMIT
                )
            parsed = self.codec.parse(ids)
            if not parsed.calls and not parsed.errors:
                self.answer = final_answer(parsed.text)
                return StopReason.ANSWER
            results = tuple([await self._call(call) for call in parsed.calls])
            results += tuple(malformed(error) for error in parsed.errors)
            self.turns[-1] = replace(self.turns[-1], results=results)
            if turn + 1 < limits.max_turns:
                self._observe(results, last=turn + 2 == limits.max_turns)
        return StopReason.TURN_LIMIT

    def _append(self, ids: list[int], mask: int, logprobs: list[float]) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.logprobs += logprobs

    async def _call(self, call: ToolCall) -> ToolResult:
        result = await run_call(
            call, self.environment, timeout_s=self.limits.tool_timeout_s, cache=self.cache
        )
        return replace(
            result, observation=self.codec.shorten(result.observation, self.limits.max_observation)
        )

    def _observe(self, results: Sequence[ToolResult], last: bool) -> None:
        """Append the tool replies as far as they fit; where they do not, the next turn's budget is 0."""
        texts = [r.observation for r in results]
        if last:
            texts[-1] += f"\n{LAST_TURN}"
        ids = self.codec.observation_ids(texts)[: self.limits.max_tokens - len(self.ids)]
        self._append(ids, 0, [0.0] * len(ids))

    async def _own_reward(self) -> dict[str, float | None]:
        """What the environment itself gives; None where it fails or is no finite number."""
        if not hasattr(self.environment, "get_reward"):
            return {}
        value = None
        with contextlib.suppress(Exception):
            value = float(await call_method(self.environment.get_reward, {}, self.limits.tool_timeout_s))
        return {
            type(self.environment).__name__: value if value is not None and math.isfinite(value) else None
        }


def _verdict(task: Task, trajectory: Trajectory) -> Score:
    if trajectory.answer is None:
        return Score(0.0, f"no answer ({trajectory.stop_reason.value})")
    try:
        return verify(task, trajectory)
    except Exception as error:  # a verifier that fails must not look like a wrong answer
        return Score(None, f"verifier failed: {type(error).__name__}: {error}")


def _tier(task: Task, trajectory: Trajectory) -> str | None:
    """The sandbox tier in which a trajectory's code ran, by a tool or by its verifier; None where none did."""
    ran = any(result.name == CODE_TOOL for turn in trajectory.turns for result in turn.results)
    return current_tier().name if ran or verifier_kind(task) == "code" else None


def _seed(seed: int, task: Task, index: int, turn: int) -> tuple[int, ...]:
    """Four integers that depend on the run's seed, the task, the sample and the turn, and on nothing else."""
    return seed, int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:6]), index, turn


class _Bar:
    """Trajectories done, tokens a second, the share of a trajectory's time that its tools took, and cache
    hits.
    """

    def __init__(self, label: str | None, total: int):
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, desc=label, unit="traj", disable=label is None)
        self._start = time.perf_counter()
        self._tokens = self._calls = self._hits = 0
        self._tools = self._turns = 0.0

    def add(self, trajectory: Trajectory) -> None:
        results = [result for turn in trajectory.turns for result in turn.results]
        self._tokens += sum(trajectory.action_mask)
        self._calls, self._hits = (
            self._calls + len(results),
            self._hits + sum(result.cached for result in results),
        )
        self._tools += sum(result.seconds for result in results)
        self._turns += sum(turn.seconds for turn in trajectory.turns)
        rate = self._tokens / (time.perf_counter() - self._start)
        share = self._tools / max(self._tools + self._turns, 1e-9)
        said = f"{rate:.0f} tokens/s, tools {share:.0%} of the time, {self._hits / max(self._calls, 1):.0%} of calls cached"
        self._bar.set_postfix_str(said, refresh=False)
        self._bar.update()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
