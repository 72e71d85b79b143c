"""The records everything else passes around: frozen dataclasses, no behaviour; and the errors all rooms
raise.

Tokens are the truth and text is a view of them. Leaves out reading, writing, scoring and rendering.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class StopReason(StrEnum):
    """Why a trajectory ended."""

    ANSWER = "answer"  # the policy gave a final answer: a turn without a tool call
    TURN_LIMIT = "turn_limit"  # the last allowed turn still called a tool
    TOKEN_LIMIT = "token_limit"  # the completion reached its token budget
    TRUNCATED_TURN = "truncated_turn"  # one turn reached its own token budget before its end token
    TIME_LIMIT = "time_limit"  # the trajectory's wall-clock budget ran out
    ERROR = "error"  # the engine failed, or the environment at its reset; the trajectory is not scored


@dataclass(frozen=True, slots=True)
class Task:
    """A problem with its gold data. The gold data never reaches the policy."""

    id: str
    prompt: str  # what the user asks, as text
    answer: str  # the gold answer
    verifier: dict[str, Any] = field(default_factory=lambda: {"kind": "exact"})  # and the kind's options
    family: str = "custom"  # "A" lookup arithmetic, "B" multi-hop, "C" code, or a name of your own
    difficulty: str = "easy"  # easy 1-2, medium 3-4, hard 5+ tool calls of the scripted expert
    split: str = "train"  # train, validation or test
    tools: tuple[str, ...] = ("search", "calculator")
    meta: dict[str, Any] = field(default_factory=dict)  # template, entities, plan, aliases, ...

    def __post_init__(self) -> None:
        """A bare kind, as people write it, becomes a dictionary."""
        if not isinstance(self.verifier, dict):
            object.__setattr__(self, "verifier", {"kind": str(self.verifier)})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the policy asked for, parsed but not yet run."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What one turn's text says: prose, calls in order, and one sentence per malformed call."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came back for one attempted call, a malformed one included."""

    name: str  # the tool asked for; "" when the call could not be parsed
    arguments: dict[str, Any]
    observation: str  # the text shown to the policy, before control tokens are escaped
    ok: bool  # False for malformed calls, unknown tools, bad arguments, time-outs and tool errors
    seconds: float = 0.0
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy call and the tool replies to it."""

    text: str  # the sampled tokens as text, control tokens included
    span: tuple[int, int]  # [start, end) of the sampled tokens in completion_ids
    results: tuple[ToolResult, ...] = ()
    seconds: float = 0.0  # waiting for and sampling this turn


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout's record. The four token fields follow design: ids, mask and log-probabilities line up."""

    task_id: str
    policy: str  # name of the policy that sampled it
    sample: int  # index in its group, 0..G-1
    seed: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    action_mask: tuple[int, ...]  # 1 on sampled tokens, 0 on tool output; as long as completion_ids
    old_logprobs: tuple[float, ...]  # at sampling, 0.0 where action_mask is 0; as long as completion_ids
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    answer: str | None = None  # the final answer read from the last turn; None where there is none
    success: float | None = None  # the verifier's value in [0, 1]; None is "not scored"
    why: str = ""  # the verifier's reason
    components: dict[str, float | None] = field(default_factory=dict)  # named reward components, unweighted
    reward: float | None = None  # the combined reward; None is "not scored"
    advantage: float | None = None
    step: int | None = None  # optimiser step it was sampled for; None outside training
    state: Any = None  # the environment's at its end, as JSON values; None where it shows none


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task at one step."""

    task_id: str
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """The batch of one optimiser step: P groups of G trajectories, group by group."""

    number: int  # of the optimiser step, from 1
    tasks: tuple[Task, ...]  # P, one a group
    trajectories: tuple[Trajectory, ...] = ()  # P * G
    trained: tuple[tuple[int, ...], ...] = ()  # their masks in the loss: zeros where one is left out of it
    counts: dict[str, int] = field(default_factory=dict)  # what the selection of groups and trajectories did
    seconds: float = 0.0  # that sampling and scoring took


@dataclass(frozen=True, slots=True)
class Score:
    """A verifier's verdict; ``value`` None is the verifier's own failure: excluded and counted, never 0."""

    value: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A state of an environment, shown as rows under named columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A state of an environment, shown as grids of coloured cells."""

    grids: dict[str, list[list[int]]]  # by title: rows of colours, 0 to 9


@dataclass(frozen=True, slots=True)
class Image:
    """A state of an environment, shown as an image."""

    title: str
    data: bytes
    kind: str = "png"  # png, jpeg or svg+xml


class AgentkitError(Exception):
    """What the user or the machine can mend. The message is one sentence that says how; no more is shown."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows, in place of a traceback through code that is not at fault."""
        return [f"{type(self).__name__}: {self}"]


class RecipeError(AgentkitError, ValueError):
    """A recipe has an unknown key, a value of the wrong type or out of bounds, or cannot be read."""


class RunError(AgentkitError, RuntimeError):
    """A run folder or a file in it is missing, damaged or badly named."""


class DiskError(RunError, OSError):
    """A file cannot be written: the disk is full, or the place is not writable."""


class DataError(AgentkitError, ValueError):
    """Data or logs that others made cannot be read, or a row of them is broken."""


class SuiteError(AgentkitError, ValueError):
    """A suite or a task in it cannot be built as asked, or does not pass its own checks."""


class EngineError(AgentkitError, RuntimeError):
    """An engine cannot start, has stopped or refused, or samples from other weights than those trained."""


class TrainingError(AgentkitError, RuntimeError):
    """Training cannot start or go on. Checkpoints of finished steps are kept."""


class SandboxError(AgentkitError, RuntimeError):
    """The sandbox does not work here."""


class Unscored(RuntimeError):
    """A verifier cannot judge an answer: nothing is known about it. The message says why."""


class ServerAway(AgentkitError, Unscored):
    """A server that tools are on does not answer: what a trajectory was worth cannot be said."""
