"""The one rollout loop: every trajectory is a coroutine that alternates policy turns and tool calls.

There is no barrier per turn: a trajectory that waits for a tool does not hold up the others, and a turn's
calls of coroutines and pure tools run together. Tokens are kept as they were sampled; tool replies are
appended as ids with action_mask 0. The task's verifier gives its verdict at the end.
Every wait is bounded: a call's by its tool's time limit, all of them by the trajectory's deadline. Leaves out
how a turn is sampled (policies), how a call is run (tools.runtime) and rewards.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import iscoroutinefunction
from itertools import chain, count, groupby
from typing import Any

from agentkit.records import (
    DataError,
    Score,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Unscored,
)
from agentkit.rollouts.chat import ChatCodec
from agentkit.rollouts.mask import Completion
from agentkit.rollouts.policy import EngineError, Policy, Request, Sample
from agentkit.runs.labfile import blame
from agentkit.tools.cache import ToolCache
from agentkit.tools.environments import SYSTEM_PROMPT, CorpusEnvironment
from agentkit.tools.execution import limited, settled
from agentkit.tools.outages import Outages
from agentkit.tools.runtime import (
    ToolSpec,
    call_method,
    check_call,
    example,
    in_thread,
    malformed,
    reset,
    run_blocking,
    run_call,
    state_of,
    tool_schemas,
    tools_of,
)
from agentkit.trajectories import verifier_kind
from agentkit.verifiers import answer_of, judges_state, verify

_NUMBERS = count()  # of trajectories, in this process
Factory = Callable[[], object]  # of environments
MADE_S = 60.0  # to make an environment, which may start a container, where tool_timeout_s is less
VERDICT_S = 120.0  # a verifier's own limits are shorter; this one is for a verifier that has none
OUT_OF_TIME = "the wall clock ended it: raise trajectory_timeout_s, or use a faster engine or tools"
LAST_TURN = "No turns are left for tools: answer now."


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one trajectory; the defaults are the recipe's."""

    max_turns: int = 10  # policy calls
    max_turn_tokens: int = 1024  # sampled in one turn
    max_tokens: int = 8192  # completion tokens, tool replies included
    tool_timeout_s: float = 10.0  # of a tool that declares no limit of its own
    trajectory_timeout_s: float = 600.0  # one that takes longer is not scored
    max_observation: int = 500  # tokens of one reply; a longer one is cut, visibly


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
    tool_cache: ToolCache | None = None,
    tool_failures: float = 0.0,
    step: int | None = None,
    progress: str | None = None,
    on_turn: Callable[[Turn], Any] | None = None,
) -> list[Trajectory]:
    """Roll out ``group_size`` trajectories a task, group by group in the order of ``tasks``.

    Args:
        tasks: P tasks.
        policy: samples the turns.
        environment: makes one a trajectory, as TRL's ``environment_factory`` does; or one such by family.
        group_size: G trajectories a task.
        seed: fixes every random number, whatever the timing.
        temperature: of sampling; 0 is greedy.
        limits: turns, tokens and seconds.
        system_prompt: told to the policy first, where its environment has no ``system_prompt`` of its own.
        tool_cache: answers of tools declared pure; None asks them every time.
        tool_failures: chance that a call is answered with an error, and works when it is repeated.
        step: recorded in the trajectories; without it DataError is raised where no environment can be reset.
        progress: label of a progress bar; None shows none.
        on_turn: called with each turn as it ends, its tool replies included: for watching.

    Returns:
        P * G trajectories, each with a stop_reason, an answer where there is one, the verifier's verdict, and
        among its components, under its environment's class name, what that one's ``get_reward`` gives.
    """
    families = _families(tasks, environment, policy.tokenizer, system_prompt)
    make = partial(_Rollout, policy=policy, seed=seed, temperature=temperature, limits=limits)
    shared = {"cache": tool_cache, "on_turn": on_turn}
    rollouts = [
        make(task, i, *families[task.family], outages=Outages(tool_failures, f"{seed} {task.id}"), **shared)
        for task in tasks
        for i in range(group_size)
    ]
    trajectories = await _gathered(rollouts, policy, progress)
    if step is None and rollouts and all(rollout.failure for rollout in rollouts):  # a training goes on
        raise rollouts[0].failure
    return [replace(trajectory, step=step) for trajectory in trajectories]


def _families(
    tasks: Sequence[Task], environment: Factory | Mapping[str, Factory], tokenizer: Any, system_prompt: str
) -> dict[str, tuple[ChatCodec, Factory]]:
    """For each family its chat format, with the tools of its environment, and what makes one."""
    families = {}
    for family in {task.family: None for task in tasks}:
        make = environment[family] if isinstance(environment, Mapping) else environment
        made = example(make)
        own = getattr(made, "system_prompt", system_prompt)
        families[family] = ChatCodec(tokenizer, own, tool_schemas(made)), make
    return families


def prompt_lengths(
    tasks: Sequence[Task], tokenizer: Any, environment: Factory | Mapping[str, Factory]
) -> dict[str, int]:
    """Tokens of each task's prompt, with the tools it lists, by task id; what a reset adds is not counted."""
    families = _families(tasks, environment, tokenizer, SYSTEM_PROMPT)
    return {task.id: len(families[task.family][0].prompt_ids(task.prompt)) for task in tasks}


async def _gathered(rollouts: Sequence[_Rollout], policy: Policy, progress: str | None) -> list[Trajectory]:
    """The trajectories of all rollouts, as many at a time as the policy serves in this loop; where one fails,
    none goes on.
    """
    slots = limited(f"{policy.in_flight} trajectories of {policy.name}", policy.in_flight)

    async def one(rollout: _Rollout) -> Trajectory:
        async with slots:
            trajectory = await rollout.trajectory()
        bar.update()
        return trajectory

    from tqdm.auto import tqdm

    with tqdm(total=len(rollouts), desc=progress, unit="traj", disable=progress is None) as bar:
        running = [asyncio.ensure_future(one(rollout)) for rollout in rollouts]
        try:
            return list(await asyncio.gather(*running))
        finally:
            for coroutine in running:  # where one has failed
                coroutine.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def rollout(tasks: Sequence[Task], policy: Policy, **options: Any) -> list[Trajectory]:
    """``arollout`` for callers without an event loop, or (as in a notebook) with a running one."""
    return run_blocking(arollout(tasks, policy, **options))


@dataclass(slots=True)
class _Rollout:
    """One trajectory from prompt to verdict."""

    task: Task
    index: int  # in its group
    codec: ChatCodec
    factory: Factory
    policy: Policy
    seed: int
    temperature: float
    limits: Limits
    cache: ToolCache | None
    outages: Outages
    on_turn: Callable[[Turn], Any] | None = None
    prompt: list[int] = field(default_factory=list)
    completion: Completion = field(default_factory=Completion)
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    number: int = field(default_factory=lambda: next(_NUMBERS))
    environment: Any = None
    unread: str = ""  # why the last turn holds no answer
    failure: DataError | None = None  # why there is no environment, state or server behind a tool

    async def trajectory(self) -> Trajectory:
        """From the first token to the verdict, with an environment of its own."""
        self.policy.begin(self.number)
        try:
            return await self._trajectory()
        finally:
            self.policy.end(self.number)
            self.environment = None  # while others go on, it holds files and memory

    async def _begin(self) -> None:
        """A fresh environment, and the prompt."""
        added = await self._reset()
        self.prompt = list(self.codec.prompt_ids(self.task.prompt + added))
        if (reads := self.policy.max_length) is not None and len(self.prompt) >= reads:
            why = (
                f"the prompt of task {self.task.id} has {len(self.prompt)} tokens, and the engine reads "
                f"{reads} with the completion: leave such tasks out, or give it a longer context"
            )
            self.prompt = list(self.codec.prompt_ids(self.task.prompt))
            if len(self.prompt) >= reads:
                raise EngineError(why)
            self.failure = DataError(f"{why} ({len(added)} characters are of its environment's reset)")

    async def _trajectory(self) -> Trajectory:
        """Beginning, turns, verdict."""
        await self._begin()
        stop = StopReason.TURN_LIMIT
        try:
            async with asyncio.timeout(self.limits.trajectory_timeout_s) as clock:
                stop = StopReason.ERROR if self.failure else await self._turns()
        except Unscored as error:
            self.failure = DataError(str(error))
        except TimeoutError:
            if not clock.expired():
                raise
            stop = StopReason.TIME_LIMIT
        state = await self._final_state()
        done = Trajectory(
            self.task.id,
            self.policy.name,
            self.index,
            self.seed,
            prompt_ids=tuple(self.prompt),
            completion_ids=tuple(self.completion.ids),
            action_mask=tuple(self.completion.mask),
            old_logprobs=tuple(self.completion.logprobs),
            turns=tuple(self.turns),
            stop_reason=StopReason.ERROR if self.failure else stop,
            answer=self.answer,
            why=str(self.failure or self.unread),
            state=state,
        )
        try:
            verdict = await in_thread(partial(_verdict, self.task, done), VERDICT_S)
        except TimeoutError:
            verdict = Score(None, f"the verifier did not answer within {VERDICT_S:g} s")
        done = replace(done, success=verdict.value, why=verdict.why)
        components, failure = await self._own_reward()
        return replace(done, components=components, why="; ".join(filter(None, (done.why, failure))))

    async def _reset(self) -> str:
        """Make an environment and reset it; what that adds to the question."""
        limit_s, name = self.limits.tool_timeout_s, f"the environment of {self.task.family}"
        made_s = max(limit_s, MADE_S)
        try:
            self.environment = await in_thread(partial(settled, self.factory), made_s, name)
            return await reset(self.environment, self.task, limit_s)
        except DataError as error:
            self.failure = error
        except TimeoutError:
            self.failure = DataError(f"{name}: not made within {made_s:g} s (raise tool_timeout_s)")
        except Exception as error:  # of its __init__
            self.failure = DataError(f"{name}: {blame(error)}")
        return ""

    def _room(self) -> int:
        """Tokens that still fit into the trajectory, and into what the engine reads."""
        most, reads = self.limits.max_tokens, self.policy.max_length
        if reads is not None:
            most = min(most, reads - len(self.prompt))
        return most - len(self.completion.ids)

    async def _turns(self) -> StopReason:
        limits, first = self.limits, len(self.turns)  # of a fork, some are there already
        results: tuple[ToolResult, ...] = self.turns[-1].results if self.turns else ()
        for turn in range(first, limits.max_turns):
            budget = min(limits.max_turn_tokens, self._room())
            if budget <= 0:
                return StopReason.TOKEN_LIMIT
            start = time.perf_counter()
            seed = _seed(self.seed, self.task, self.index, turn)
            request = Request(
                self.task,
                self.number,
                turn,
                self.prompt + self.completion.ids,
                seed,
                budget,
                self.temperature,
                results,
                self.codec.format,
                tools=self.codec.tools,
            )
            sample = await self._sample(request)
            span = self.completion.sampled(sample.ids, sample.logprobs)
            text, seconds = self.codec.decode(sample.ids), time.perf_counter() - start
            self.turns.append(Turn(text, span, seconds=seconds))
            if not self.codec.ends.intersection(sample.ids[-1:]):
                self._tell()
                return (
                    StopReason.TRUNCATED_TURN if budget == limits.max_turn_tokens else StopReason.TOKEN_LIMIT
                )
            parsed = self.codec.parse(sample.ids, request.ids)
            if not parsed.calls and not parsed.errors:
                self.answer, self.unread = answer_of(self.task, parsed.text)
                self._tell()
                return StopReason.ANSWER
            runs = [await self._answered(*run) for run in groupby(parsed.calls, self._at_once)]
            results = (*chain(*runs), *map(malformed, parsed.errors))
            self.turns[-1] = replace(self.turns[-1], results=results)
            self._tell()
            if turn + 1 < limits.max_turns:
                self._observe(results, last=turn + 2 == limits.max_turns)
        return StopReason.TURN_LIMIT

    def _tell(self) -> None:
        if self.on_turn:
            self.on_turn(self.turns[-1])

    async def _sample(self, request: Request) -> Sample:
        return await self.policy.sample(request)

    def _at_once(self, call: ToolCall) -> bool:
        """Whether a call runs beside its neighbours in a turn: it is a coroutine, as in TRL, or pure."""
        method = tools_of(self.environment).get(call.name)
        return iscoroutinefunction(method) or getattr(method, "tool_spec", ToolSpec()).pure

    async def _answered(self, at_once: bool, calls: Iterable[ToolCall]) -> list[ToolResult]:
        if at_once:
            return await asyncio.gather(*map(self._call, calls))
        return [await self._call(call) for call in calls]

    async def _call(self, call: ToolCall) -> ToolResult:
        valid = check_call(call, tools_of(self.environment)) is None
        if valid and (problem := self.outages.problem(call)):
            return malformed(problem, call)
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
        before = self.completion.ids
        ids = self.codec.observation_ids(texts, before)
        self.completion.observed(ids[: self._room()])

    async def _final_state(self) -> Any:
        """The environment's state at the end; where it cannot be read, the trajectory has failed."""
        if self.failure:
            return None
        try:
            return await state_of(self.environment, self.limits.tool_timeout_s)
        except DataError as error:
            self.failure = error
            return None

    async def _own_reward(self) -> tuple[dict[str, float | None], str]:
        """What the environment itself gives, if it applies; None and the reason where that is no number."""
        if not hasattr(self.environment, "get_reward"):
            return {}, ""
        name, limit_s = type(self.environment).__name__, self.limits.tool_timeout_s
        try:
            given = await call_method(self.environment.get_reward, {}, limit_s)
            if given is None:  # as in TRL: it does not apply
                return {}, ""
            if math.isfinite(value := float(given)):
                return {name: value}, ""
            why = f"it gave {value}"
        except TimeoutError:
            why = f"no answer within {limit_s:g} s"
        except Exception as error:  # it is user code
            why = blame(error)
        return {name: None}, f"{name}.get_reward failed: {why}"


def _verdict(task: Task, trajectory: Trajectory) -> Score:
    if trajectory.stop_reason is StopReason.TIME_LIMIT:  # a slow machine is not the policy's fault
        return Score(None, OUT_OF_TIME)
    if trajectory.stop_reason is StopReason.ERROR:
        return Score(None, trajectory.why)
    if trajectory.answer is None and not judges_state(verifier_kind(task)):
        if trajectory.stop_reason is not StopReason.ANSWER:
            return Score(0.0, f"no answer ({trajectory.stop_reason.value})")
        return Score(0.0, f"no answer: {trajectory.why}")
    try:
        return verify(task, trajectory)
    except (Exception, SystemExit) as error:  # a verifier that fails must not look like a wrong answer
        return Score(None, f"verifier failed: {blame(error)}")


def _seed(seed: int, task: Task, index: int, turn: int) -> tuple[int, ...]:
    """Four integers that depend on the run's seed, the task, the sample and the turn, and on nothing else."""
    return seed, int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:6]), index, turn
