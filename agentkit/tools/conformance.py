"""Tests that any environment can inherit: whether it keeps the protocol that agentkit and TRL rely on.

    class TestMine(EnvironmentConformance):
        factory = MyEnvironment
        calls = [ToolCall("look", {"query": "x"})]

pytest then runs every check on it. Leaves out whether the tools are any good.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from agentkit.records import ToolCall, ToolResult
from agentkit.tools.runtime import ToolSpec, call_method, run_call, tool_schemas, tools_of

ROW = {"prompt": [{"role": "user", "content": "Why?"}], "task_id": "t", "answer": "because"}


class EnvironmentConformance:
    """Checks of the environment protocol (TRL's ``environment_factory`` form).

    Attributes:
        factory: makes an environment.
        calls: calls that go well on a fresh environment, in this order.
        row: what reset is given, as a row of TRL's data set is.
        timeout_s: of every call.
    """

    factory: ClassVar[Callable[[], object]]
    calls: ClassVar[Sequence[ToolCall]] = ()
    row: ClassVar[dict[str, Any]] = ROW
    timeout_s: ClassVar[float] = 60.0

    def fresh(self) -> object:
        """A new environment after its reset."""
        environment = type(self).factory()
        self.reset(environment)
        return environment

    def reset(self, environment: object) -> Any:
        """What its reset gives."""
        return asyncio.run(call_method(environment.reset, self.row, self.timeout_s))

    def replies(self, environment: object, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results of calls, one after another."""

        async def work() -> list[ToolResult]:
            return [await run_call(call, environment, timeout_s=self.timeout_s) for call in calls]

        return asyncio.run(work())

    def test_reset_takes_a_row_and_gives_text_or_nothing(self) -> None:
        parameters = inspect.signature(type(self).factory().reset).parameters.values()
        assert any(p.kind is p.VAR_KEYWORD for p in parameters), (
            "reset needs **row: TRL hands it every column of the data set"
        )
        assert isinstance(self.reset(type(self).factory()), str | None), (
            "reset gives text for the question, or None"
        )

    def test_every_tool_has_a_schema(self) -> None:
        environment = self.fresh()
        schemas = {schema["function"]["name"]: schema["function"] for schema in tool_schemas(environment)}
        assert schemas, "there is no public method, so there is no tool"
        assert set(schemas) == set(tools_of(environment))
        for name, schema in schemas.items():
            json.dumps(schema)
            assert schema["description"].strip(), f"{name} has no description"
            for argument, told in schema["parameters"]["properties"].items():
                assert told.get("description"), f"{name}: the docstring does not describe {argument}"

    def test_the_given_calls_go_well_and_answer_alike_after_a_reset(self) -> None:
        environment = self.fresh()
        first = self.replies(environment, self.calls)
        assert all(result.ok for result in first), [result.observation for result in first if not result.ok]
        self.reset(environment)
        again = self.replies(environment, self.calls)
        assert [r.observation for r in again] == [r.observation for r in first], (
            "reset leaves something behind"
        )

    def test_environments_share_nothing(self) -> None:
        expected = [result.observation for result in self.replies(self.fresh(), self.calls)]
        one, other = self.fresh(), self.fresh()
        found = [self.replies(environment, [call]) for call in self.calls for environment in (one, other)]
        assert [result.observation for (result,) in found] == [text for text in expected for _ in range(2)]

    def test_pure_tools_are_pure(self) -> None:
        environment = self.fresh()
        tools = tools_of(environment)
        for call in self.calls:
            if getattr(tools[call.name], "tool_spec", ToolSpec()).pure:
                alone, used = (
                    self.replies(self.fresh(), [call]),
                    self.replies(environment, [call, *self.calls, call]),
                )
                texts = {alone[0].observation, used[0].observation, used[-1].observation}
                assert len(texts) == 1, (
                    f"{call.name} is declared pure, and answers {call.arguments} in {len(texts)} ways"
                )

    def test_bad_calls_are_told_what_to_mend(self) -> None:
        environment = self.fresh()
        kinds = {
            n: {p.kind for p in inspect.signature(tool).parameters.values()}
            for n, tool in tools_of(environment).items()
        }
        names = [name for name, found in kinds.items() if inspect.Parameter.VAR_KEYWORD not in found]
        bad = [
            ToolCall("no_such_tool", {}),
            ToolCall("reset", {}),
            ToolCall("get_reward", {}),
            ToolCall("__init__", {}),
        ]
        bad += [ToolCall(name, {"no_such_argument": 1}) for name in names]
        for result in self.replies(environment, bad):
            assert not result.ok and result.observation.startswith("Error: "), (
                f"{result.name}: {result.observation[:80]}"
            )

    def test_the_reward_is_a_finite_number(self) -> None:
        environment = self.fresh()
        if hasattr(environment, "get_reward"):
            for calls in ((), self.calls):
                self.replies(environment, calls)
                value = asyncio.run(call_method(environment.get_reward, {}, self.timeout_s))
                assert value is None or math.isfinite(value), f"get_reward gives {value!r}"
