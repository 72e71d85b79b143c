"""Tests that any environment can inherit: whether it keeps the protocol that agentkit and TRL rely on.

    class TestMine(EnvironmentConformance):
        factory = MyEnvironment
        calls = [ToolCall("look", {"query": "x"})]

pytest then runs every check on it. Leaves out whether the tools are any good.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from agentkit.records import ToolCall, ToolResult
from agentkit.tools.runtime import ToolSpec, call_method, run_call, tool_schemas, tools_of

ROW = {"prompt": [{"role": "user", "content": "Why?"}], "task_id": "t", "answer": "because"}
NO_TOOLS = [ToolCall(name, {}) for name in ("no_such_tool", "reset", "get_reward", "__init__")]


class EnvironmentConformance:
    """Checks of the environment protocol (TRL's ``environment_factory`` form)."""

    factory: ClassVar[Callable[[], object]]  # makes an environment
    calls: ClassVar[Sequence[ToolCall]] = ()  # that go well on a fresh environment, in this order
    row: ClassVar[dict[str, Any]] = ROW  # what reset is given, as a row of TRL's data set is
    timeout_s: ClassVar[float] = 60.0  # of every call

    def fresh(self) -> object:
        """A new environment after its reset."""
        environment = type(self).factory()
        self.call(environment.reset, self.row)
        return environment

    def call(self, method: Callable, arguments: dict[str, Any]) -> Any:
        return asyncio.run(call_method(method, arguments, self.timeout_s))

    def results(self, environment: object, calls: Sequence[ToolCall]) -> list[ToolResult]:
        async def work() -> list[ToolResult]:
            return [await run_call(call, environment, timeout_s=self.timeout_s) for call in calls]

        return asyncio.run(work())

    def observations(self, environment: object, calls: Sequence[ToolCall]) -> list[str]:
        return [result.observation for result in self.results(environment, calls)]

    def test_reset_takes_a_row_and_gives_text_or_nothing(self) -> None:
        environment = type(self).factory()
        parameters = inspect.signature(environment.reset).parameters.values()
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        assert takes_all, "reset needs **row: TRL hands it every column of the data set"
        text = self.call(environment.reset, self.row)
        assert isinstance(text, str | None), "reset gives text for the question, or None"

    def test_every_tool_has_a_schema(self) -> None:
        environment = self.fresh()
        schemas = {schema["function"]["name"]: schema["function"] for schema in tool_schemas(environment)}
        assert schemas, "there is no public method, so there is no tool"
        assert set(schemas) == set(tools_of(environment))
        for name, schema in schemas.items():
            json.dumps(schema)
            assert schema["description"].strip(), f"{name} has no description"
            for argument, properties in schema["parameters"]["properties"].items():
                assert properties.get("description"), f"{name}: the docstring does not describe {argument}"

    def test_the_given_calls_go_well_and_answer_alike_after_a_reset(self) -> None:
        environment = self.fresh()
        first = self.results(environment, self.calls)
        assert all(result.ok for result in first), [result.observation for result in first if not result.ok]
        self.call(environment.reset, self.row)
        again = self.observations(environment, self.calls)
        assert again == [result.observation for result in first], "reset leaves something behind"

    def test_environments_share_nothing(self) -> None:
        alone = self.observations(self.fresh(), self.calls)
        one, other = self.fresh(), self.fresh()
        for call, expected in zip(self.calls, alone, strict=True):
            assert self.observations(one, [call]) + self.observations(other, [call]) == [expected] * 2

    def test_pure_tools_are_pure(self) -> None:
        environment = self.fresh()
        tools = tools_of(environment)
        for call in self.calls:
            if getattr(tools[call.name], "tool_spec", ToolSpec()).pure:
                alone = self.observations(self.fresh(), [call])
                first, *_, last = self.observations(environment, [call, *self.calls, call])
                message = f"{call.name} is declared pure, and answers {call.arguments} in more ways than one"
                assert alone == [first] == [last], message

    def test_bad_calls_are_told_what_to_mend(self) -> None:
        environment, bad = self.fresh(), list(NO_TOOLS)
        for name, tool in tools_of(environment).items():
            kinds = {parameter.kind for parameter in inspect.signature(tool).parameters.values()}
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                bad.append(ToolCall(name, {"no_such_argument": 1}))
        for result in self.results(environment, bad):
            message = f"{result.name}: {result.observation[:80]}"
            assert not result.ok and result.observation.startswith("Error: "), message

    def test_the_reward_is_a_finite_number(self) -> None:
        environment = self.fresh()
        if hasattr(environment, "get_reward"):
            for calls in ((), self.calls):
                self.results(environment, calls)
                value = self.call(environment.get_reward, {})
                assert value is None or math.isfinite(value), f"get_reward gives {value!r}"
