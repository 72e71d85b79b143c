"""Combining components into a reward, and scoring trajectories with it.

Leaves out the components (components, calls) and who may bring some (lab).
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from numbers import Real

from agentkit.records import Task, Trajectory
from agentkit.runs.labfile import blame, check_takes, takes
from agentkit.tools.execution import settled

Component = Callable[..., float | None]  # (task, trajectory), and state where it asks for that
Reward = Mapping[str, tuple[Component, float]]  # each component with its weight
AT_ONCE = 8  # components that wait for a judge
LARGEST = 1e15  # number that is a reward: squares of much larger ones are infinite in float32


def product(*factors: Component) -> Component:
    """One component that is the product of several: None where a factor is None."""

    def multiplied(task: Task, trajectory: Trajectory) -> float | None:
        values = [ask(factor, task, trajectory) for factor in factors]
        return None if None in values else math.prod(values)

    return multiplied


def ask(component: Component, task: Task, trajectory: Trajectory) -> float | None:
    """What a component gives, which may ask for the ``state`` at the end too."""
    named = {"state": deepcopy(trajectory.state)} if takes(component, "state") else {}
    return component(task, trajectory, **named)


def is_read(component: Component) -> bool:
    """Whether it reads what the environment saw: no other trajectory tells what it would give."""
    return getattr(component, "is_read", False) or takes(component, "state")


def score(task: Task, trajectory: Trajectory, reward: Reward) -> Trajectory:
    """The trajectory with its components, unweighted, and their weighted sum.

    A component that is None does not apply and is left out. One that raises, or is no number (of up to
    LARGEST), is recorded as None and the whole reward is None, as it is when the verifier gave no verdict or
    no component applies. What the trajectory already holds under other names stays, such as its environment's
    own reward. Raises ValueError for what is no reward.
    """
    check_reward(reward)
    values = {name: _guarded(name, component, task, trajectory) for name, (component, _) in reward.items()}
    weighted = [weight * values[name] for name, (_, weight) in reward.items() if values[name] is not None]
    total = sum(weighted)  # NaN where a component failed
    scored = weighted and trajectory.success is not None and abs(total) <= LARGEST
    known = {name: None if value is None or math.isnan(value) else value for name, value in values.items()}
    return replace(
        trajectory, components={**trajectory.components, **known}, reward=total if scored else None
    )


def check_reward(reward: Reward) -> None:
    """Raise ValueError for what is no reward, naming the component."""
    if not isinstance(reward, Mapping):
        raise ValueError(f"a reward of type {type(reward).__name__}: give {{name: (function, weight)}}")
    for name, pair in reward.items():
        function, weight = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
        if not callable(function) or not isinstance(weight, Real) or not math.isfinite(weight):
            raise ValueError(
                f"reward component {name!r} is {str(pair):.80}: give (function, weight), the weight a number"
            )
        check_takes(f"the reward component {name!r}", function, "task", "trajectory")


def score_all(tasks: Iterable[Task], trajectories: Iterable[Trajectory], reward: Reward) -> list[Trajectory]:
    """``score`` for many trajectories of known tasks.

    Rewards of one task are compared with each other, so all must be made of the same components: where one is
    None for some of a task's trajectories and not for all, as when a judge did not answer, those have no
    reward.
    """
    check_reward(reward)
    by_id = {task.id: task for task in tasks}
    pairs = [(by_id[t.task_id], t) for t in trajectories]
    threads = ThreadPoolExecutor(AT_ONCE)
    try:
        asked = {
            name: (_at_once(component, pairs, threads) if hasattr(component, "waits") else component, weight)
            for name, (component, weight) in reward.items()
        }
        scored = [score(task, t, asked) for task, t in pairs]
    finally:  # where it is interrupted, nobody is asked any more
        threads.shutdown(cancel_futures=True)
    present = defaultdict(set)
    for t in scored:
        if t.reward is not None:
            present[t.task_id] |= {name for name in reward if t.components[name] is not None}
    whole = [all(t.components[name] is not None for name in present[t.task_id]) for t in scored]
    return [t if same else replace(t, reward=None) for t, same in zip(scored, whole, strict=True)]


def _at_once(component: Component, pairs: Sequence[tuple[Task, Trajectory]], threads: Executor) -> Component:
    """A component that waits for others, for these trajectories: asked of them all, of like answers once."""
    unlike = {(task.id, t.answer): (task, t) for task, t in pairs}
    values = {key: threads.submit(component, *pair) for key, pair in unlike.items()}
    return lambda task, trajectory: values[task.id, trajectory.answer].result()


def _guarded(name: str, component: Component, task: Task, trajectory: Trajectory) -> float | None:
    """A component's value, None where it does not apply, NaN where it failed, so that the run goes on."""
    try:
        value = settled(partial(ask, component, task, trajectory))
        return None if value is None else float(value) if abs(value) <= LARGEST else math.nan
    except (Exception, SystemExit) as error:  # a reward is user code
        warnings.warn(
            f"reward component {name!r} failed ({blame(error):.200}); the trajectory has no reward.",
            stacklevel=2,
        )
        return math.nan
