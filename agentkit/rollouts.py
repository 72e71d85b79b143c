"""The one rollout loop: every trajectory is a coroutine that alternates policy turns and tool calls.

There is no barrier per turn: a trajectory that waits for a tool does not hold up the others. Tokens are kept as they were
sampled; tool replies are appended as ids with action_mask 0. Scoring happens at the end, through the task's verifier.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from agentkit.chat import ChatCodec, parse_turn
from agentkit.environment import (
    SYSTEM_PROMPT,
    CorpusEnvironment,
    environments,
    in_thread,
    malformed,
    run_call,
    tool_schemas,
)
from agentkit.knowledge import Corpus
from agentkit.policies.base import Policy, Request, Sample
from agentkit.recipes import Recipe
from agentkit.records import Score, StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.sandbox import current_tier
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
    tool_timeout_s: float = 10.0
    trajectory_timeout_s: float = 600.0


def rollout_options(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says about rollouts, as keyword arguments of ``rollout``."""
    return {
        "environment": environments(Corpus.open(), recipe.top_k),
        "temperature": recipe.temperature,
        "limits": Limits(recipe.max_turns, recipe.max_turn_tokens, recipe.max_tokens),
    }


@dataclass(slots=True)
class _Tape:
    """A trajectory while it grows; the three lists stay equally long."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    turns: list[Turn]

    def sampled(self, sample: Sample) -> tuple[int, int]:
        start = len(self.ids)
        self.ids += sample.ids
        self.mask += [1] * len(sample.ids)
        self.logprobs += sample.logprobs
        return start, len(self.ids)

    def observed(self, ids: list[int]) -> None:
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)


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
    step: int | None = None,
    progress: str | None = None,
) -> list[Trajectory]:
    """Roll out ``group_size`` trajectories a task, group by group in the order of ``tasks``.

    Args:
        tasks: P tasks.
        policy: samples the turns.
        environment: makes one environment a trajectory (TRL's ``environment_factory`` form); or one such for each family.
        group_size: G trajectories a task.
        seed: fixes every random number; the same seed gives the same trajectories, whatever the timing.
        temperature: of sampling; 0 is greedy.
        limits: turns, tokens and seconds.
        system_prompt: what the policy is told first, unless its environment has a ``system_prompt`` of its own.
        step: recorded in the trajectories.
        progress: label of a progress bar; None shows none.

    Returns:
        P * G trajectories, each with a stop_reason, an answer where there is one, and the verifier's verdict.
    """
    factories = {t.family: environment[t.family] if isinstance(environment, Mapping) else environment for t in tasks}
    codecs = {family: _codec(policy, make(), system_prompt) for family, make in factories.items()}
    bar = _bar(progress, len(tasks) * group_size)
    places = asyncio.Semaphore(policy.in_flight or len(tasks) * group_size)

    async def one(task: Task, index: int) -> Trajectory:
        async with places:
            number = next(_NUMBERS)
            policy.begin(number)
            try:
                around = codecs[task.family], factories[task.family]()
                trajectory = await _trajectory(task, index, number, policy, *around, seed, temperature, limits)
            finally:
                policy.end(number)
        bar.update()
        return replace(trajectory, step=step)

    try:
        return list(await asyncio.gather(*(one(task, index) for task in tasks for index in range(group_size))))
    finally:
        bar.close()


def rollout(tasks: Sequence[Task], policy: Policy, **options: Any) -> list[Trajectory]:
    """``arollout`` for callers without an event loop, or (as in a notebook) with a running one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(arollout(tasks, policy, **options))
    box: dict[str, Any] = {}

    def work() -> None:
        try:
            box["result"] = asyncio.run(arollout(tasks, policy, **options))
        except BaseException as error:  # handed to the caller's thread
            box["error"] = error

    thread = threading.Thread(target=work, name="rollout")
    thread.start()
    thread.join()
    if "error" in box:
        raise box["error"]
    return box["result"]


def _codec(policy: Policy, environment: object, system_prompt: str) -> ChatCodec:
    prompt = getattr(environment, "system_prompt", system_prompt)
    return ChatCodec(policy.tokenizer, prompt, tool_schemas(environment))


async def _trajectory(
    task: Task,
    index: int,
    number: int,
    policy: Policy,
    codec: ChatCodec,
    environment: Any,
    seed: int,
    temperature: float,
    limits: Limits,
) -> Trajectory:
    """One trajectory from prompt to verdict."""
    prompt, results, answer = list(codec.prompt_ids(task.prompt)), (), None
    tape = _Tape([], [], [], [])
    await in_thread(partial(environment.reset, prompt=task.prompt, task_id=task.id), limits.tool_timeout_s)
    deadline, stop = time.monotonic() + limits.trajectory_timeout_s, StopReason.TURN_LIMIT
    for turn in range(limits.max_turns):
        budget = min(limits.max_turn_tokens, limits.max_tokens - len(tape.ids))
        if budget <= 0 or time.monotonic() > deadline:
            stop = StopReason.TOKEN_LIMIT if budget <= 0 else StopReason.TIME_LIMIT
            break
        start = time.perf_counter()
        sample = await policy.sample(
            Request(task, number, turn, prompt + tape.ids, _seed(seed, task, index, turn), budget, temperature, results)
        )
        span, seconds = tape.sampled(sample), time.perf_counter() - start
        text = codec.decode(sample.ids)
        if not sample.ids or sample.ids[-1] != codec.end_id:
            stop = StopReason.TRUNCATED_TURN if budget == limits.max_turn_tokens else StopReason.TOKEN_LIMIT
            tape.turns.append(Turn(text, span, (), seconds))
            break
        parsed = parse_turn(text.removesuffix(policy.tokenizer.eos_token))
        if not parsed.calls and not parsed.errors:
            answer, stop = final_answer(parsed.text), StopReason.ANSWER
            tape.turns.append(Turn(text, span, (), seconds))
            break
        results = tuple([await run_call(c, environment, timeout_s=limits.tool_timeout_s) for c in parsed.calls])
        results += tuple(malformed(error) for error in parsed.errors)
        tape.turns.append(Turn(text, span, results, seconds))
        if turn + 1 < limits.max_turns:
            tape.observed(_observe(codec, results, last=turn + 2 == limits.max_turns, room=limits.max_tokens - len(tape.ids)))
    tokens = {"prompt_ids": tuple(prompt), "completion_ids": tuple(tape.ids), "action_mask": tuple(tape.mask)}
    tokens |= {"old_logprobs": tuple(tape.logprobs), "turns": tuple(tape.turns), "stop_reason": stop, "answer": answer}
    trajectory = Trajectory(task.id, policy.name, index, seed, **tokens)
    try:
        verdict = await in_thread(partial(_verdict, task, trajectory), VERDICT_S)
    except TimeoutError:
        verdict = Score(None, f"the verifier did not answer within {VERDICT_S:g} s")
    return replace(trajectory, success=verdict.value, why=verdict.why, sandbox=_tier(task, trajectory))


def _observe(codec: ChatCodec, results: Sequence[ToolResult], last: bool, room: int) -> list[int]:
    """Ids of the tool replies; nothing when they would not fit, so that the next turn's budget is 0."""
    texts = [r.observation for r in results]
    if last:
        texts[-1] += f"\n{LAST_TURN}"
    ids = codec.observation_ids(texts)
    return ids if len(ids) < room else ids[:room]


def _verdict(task: Task, trajectory: Trajectory) -> Score:
    if trajectory.answer is None:
        return Score(0.0, f"no answer ({trajectory.stop_reason.value})")
    try:
        return verify(task, trajectory)
    except Exception as error:  # a verifier that fails must not look like a wrong answer
        return Score(None, f"verifier failed: {type(error).__name__}: {error}")


def _tier(task: Task, trajectory: Trajectory) -> str | None:
    """The sandbox tier in which a trajectory's code ran, by a tool or by its verifier; None where none did."""
    verifier = task.verifier if isinstance(task.verifier, str) else task.verifier["kind"]
    ran = any(result.name == CODE_TOOL for turn in trajectory.turns for result in turn.results)
    return current_tier().name if ran or verifier == "code" else None


def _seed(seed: int, task: Task, index: int, turn: int) -> tuple[int, ...]:
    """Four integers that depend on the run's seed, the task, the sample and the turn, and on nothing else."""
    return seed, int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:6]), index, turn


def _bar(label: str | None, total: int) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, desc=label, unit="traj", disable=label is None, leave=False)
