"""The ways models write calls: what is one, what is malformed, and that nothing stalls a parser."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit import StopReason, ToolCall, Trajectory
from agentkit.records import ToolResult, Turn
from agentkit.rollouts.call_formats import FORMATS, MAX_CALLS, detect_format, format_call, parse_turn
from agentkit.rollouts.call_json import MAX_DEPTH
from agentkit.runs import read_trajectories, write_trajectories

SEARCH = ToolCall("search", {"query": "x"})
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
CODER = "<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>"
LLAMA = '{"name": "search", "parameters": {"query": "x"}}'
GLM = "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"
ONE = {"glm": GLM, "hermes": CALL, "qwen3_coder": CODER, "llama3": LLAMA}
SCHEMA = [{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {
    "text": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"}, "flag": {"type": "boolean"},
    "items": {"type": "array"}, "options": {"type": "object"}, "maybe": {"type": ["integer", "null"]}}}}}]  # fmt: skip


def tagged(inside: str) -> str:
    return f"<tool_call>{inside}</tool_call>"


# ---- every format
@pytest.mark.parametrize("format", FORMATS)
def test_a_call_is_read_prose_is_none_and_thoughts_do_not_call(format):
    one = ONE[format]
    assert parse_turn(one, format).calls == (SEARCH,) and parse_turn(one, format).errors == ()
    for text in ("Answer: {1, 2} and so on", "", "search(x)", "</tool_call>", "an answer</think>Answer: 1"):
        found = parse_turn(text, format)
        assert (found.text, found.calls, found.errors) == (text, (), ())
    assert parse_turn(f"<think>{one}</think>\n{one}", format).calls == (SEARCH,)
    for text in (f"<think>{one}</think>", f"<think>{one}", f"<think><think>{one}</think>"):
        assert parse_turn(text, format).calls == ()
    for text in (one, f"hm {one} Answer: 5", f"<think>{one}"):
        opened = parse_turn(text, format, thought=True)
        assert (opened.text, opened.calls) == ("", ())
        assert parse_turn(f"{text}</think>{one}", format, thought=True).calls == (SEARCH,)


@pytest.mark.parametrize("format", ["hermes", "qwen3_coder", "glm"])
def test_a_call_cut_off_anywhere_is_malformed(format):
    for cut in range(len("<tool_call>"), len(ONE[format])):
        found = parse_turn(ONE[format][:cut], format)
        assert not found.calls and len(found.errors) == 1, ONE[format][:cut]


@pytest.mark.parametrize("format", FORMATS)
def test_calls_come_in_order_and_are_capped(format):
    calls = [format_call("t", {"i": str(i)}, format) for i in range(MAX_CALLS + 5)]
    many = parse_turn((";" if format == "llama3" else "\n").join(calls), format)
    assert [c.arguments["i"] for c in many.calls] == [str(i) for i in range(MAX_CALLS)]
    assert many.errors == (f"more than {MAX_CALLS} tool calls in one turn; the rest was ignored",)


def test_the_format_is_read_from_the_chat_template_and_another_is_refused():
    assert detect_format("..<tool_call>\n<function=' + name + '>..") == "qwen3_coder"
    assert detect_format("<|start_header_id|>ipython<|end_header_id|> <|python_tag|>") == "llama3"
    assert detect_format("<tool_call>{{ name }}<arg_key>") == "glm"
    assert detect_format(None) == detect_format("{{ messages }}") == detect_format(CALL) == "hermes"
    with pytest.raises(ValueError, match="format 'xml': use one of 'hermes', 'qwen3_coder'"):
        parse_turn("", "xml")


# ---- JSON
MALFORMED = [
    ('{"name": "search", "arguments": {"query": "x"}', "delimiter"),
    ('{"name": "search", "arguments": {"query": "a\nb"}}', "control character"),
    ("{'name': 'search', 'arguments': {}}", "property name"),
    ('{"name": "search", "arguments": {"query": "x", "query": "y"}}', "occurs twice"),
    ('{"name": "search", "arguments": {"query": -Infinity}}', "-Infinity is not JSON"),
    ('{"name": "search", "arguments": {"query": 1e999}}', "too large"),
    ('{"name": "search", "arguments": null}', "must be an object"),
    ('{"name": "search", "arguments": "[1]"}', "must be an object"),
    ('{"name": "search", "arguments": "{\\"a\\": 1, \\"a\\": 2}"}', "occurs twice"),
    ('{"name": "", "arguments": {}}', '"name" is missing'),
    ('{"name": 3, "arguments": {}}', '"name" is missing'),
    ('{"name": "\\udfff"}', "surrogates not allowed"),
    ('{"name": "search", "arguments": "{\\"query\\": \\"\\\\ud800\\"}"}', "surrogates not allowed"),
    ('{"a":' * 100_000, ""),
    ('{"name": "search", "arguments": {"query": ' + "9" * 6_000 + "}}", "4300 digits"),
]


@pytest.mark.parametrize(("inside", "says"), MALFORMED)
def test_a_malformed_call_names_its_fault_and_the_next_call_counts(inside, says):
    parsed = parse_turn(tagged(inside) + CALL)
    assert len(parsed.errors) == 1 and says in parsed.errors[0] and len(parsed.errors[0]) < 300
    assert parsed.calls == (SEARCH,) and parsed.text == ""
    alone = parse_turn(inside, "llama3")
    assert alone.calls == () and len(alone.errors) == 1 and says in alone.errors[0]


@pytest.mark.parametrize("tag", ["</tool_call>", "<think>", "</think>", "<|im_end|>", CALL, "```"])
def test_markup_inside_a_string_stays_a_string(tag):
    arguments = {"code": f"print('{tag}')", "more": tag}
    parsed = parse_turn(format_call("python", arguments) + "\n" + CALL)
    assert parsed.calls == (ToolCall("python", arguments), SEARCH) and parsed.errors == ()


QUERY = {"query": "x"}
READ = [
    *({"name": "search", key: QUERY} for key in ("arguments", "parameters", "args", "input")),
    {"name": "search", "args": '{"query": "x"}'}, {"type": "function", "name": "search", "input": QUERY},
    {"id": "call_1", "name": "search", "arguments": QUERY},
]  # fmt: skip
LOST = [
    {"name": "search"} | QUERY, {"name": "search", "arguments": {}} | QUERY, {"name": "search", "arguments": QUERY, "k": 3},
    {"name": "search", "arguments": {}, "parameters": QUERY}, {"name": "search", "kwargs": QUERY}, {"name": "search", "input": "x"},
    {"name": "search", "parameters": None}, {"name": "search", "arguments ": QUERY}, {"name": "get", "id": 5}, {"name": "get", "type": "book"},
    {"function": {"name": "search", "arguments": QUERY}}, {"tool": "search", "arguments": QUERY}, {"search": QUERY},
]  # fmt: skip


@pytest.mark.parametrize("format", ["hermes", "llama3"])
def test_arguments_in_another_place_are_read_or_refused_and_never_left_out(format):
    def found(written):
        text = json.dumps(written)
        return parse_turn(tagged(text) if format == "hermes" else text, format)

    for written in READ:
        assert (found(written).calls, found(written).errors) == ((SEARCH,), ()), written
    for written in ({"name": "now"}, {"name": "now", "parameters": {}}):
        assert found(written).calls == (ToolCall("now", {}),)
    for written in LOST:
        assert found(written).calls == () and len(found(written).errors) == 1, written


def nested(depth: int, kind: str) -> str:
    if kind == "list":
        return '["[[", [], ' + "[" * (depth - 1) + "]" * depth
    return '{"a": ' * (depth - 1) + "{}" + "}" * (depth - 1)


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("format", ["hermes", "hermes, as text", "qwen3_coder"])
def test_arguments_that_nest_too_deeply_are_malformed_and_the_deepest_allowed_can_be_written(
    tmp_path, format, kind
):
    """Parsers read 600 levels, but records are copied by recursion: that would end a training."""

    def parsed(depth: int):
        arguments = f'{{"items": {nested(depth, kind)}}}'
        written = json.dumps(arguments) if format.endswith("text") else arguments
        tags = f"<function=t><parameter=items>{nested(depth, kind)}</parameter></function>"
        inside = tags if format == "qwen3_coder" else f'{{"name": "t", "arguments": {written}}}'
        return parse_turn(tagged(inside), format.partition(",")[0], SCHEMA)

    says = f"malformed tool call: the arguments nest deeper than {MAX_DEPTH} levels"
    for depth in (MAX_DEPTH + 1, 600, 900):
        assert (parsed(depth).calls, parsed(depth).errors) == ((), (says,))
    (call,) = parsed(MAX_DEPTH).calls
    turn = Turn("", (0, 0), (ToolResult(call.name, call.arguments, "Error", ok=False),))
    trajectory = Trajectory("t", "p", 0, 0, (), (), (), (), (turn,), StopReason.ANSWER)
    assert read_trajectories(write_trajectories(tmp_path / "t.parquet", [trajectory])) == [trajectory]


# ---- Qwen3-Coder
TEXTS = [
    (" 3\n", 3), ("1.5", 1.5), ("True", True), ('{"a": [1]}', {"a": [1]}), ("null", None),
    *((text, text) for text in ("three", "NaN", "1e999", "9" * 6_000, "[" * 10_000)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), TEXTS)
def test_texts_become_what_the_schema_says_and_strings_stay(text, value):
    """A text that is no number stays a text, and the check of the call's types says what it must be."""
    for name in ("n", "x", "flag", "items", "options", "maybe"):
        inside = f"<function=t>\n<parameter={name}>\n{text}\n</parameter>\n</function>"
        (call,) = parse_turn(tagged(inside), "qwen3_coder", SCHEMA).calls
        assert call.arguments[name] == (value if value != text else text.removesuffix("\n"))
    for name in ("text", "unknown"):
        inside = f"<function=t><parameter={name}>{text}</parameter></function>"
        (call,) = parse_turn(tagged(inside), "qwen3_coder", SCHEMA).calls
        assert call.arguments[name] == text.removesuffix("\n")


@pytest.mark.parametrize("parameters", [None, {"properties": None}, {"properties": {"x": {"type": None}}}])
def test_a_schema_without_types_leaves_texts(parameters):
    schema = [{"type": "function", "function": {"name": "t", "parameters": parameters}}]
    found = parse_turn(tagged("<function=t><parameter=x>1</parameter></function>"), "qwen3_coder", schema)
    assert found.calls == (ToolCall("t", {"x": "1"}),)


def test_markup_inside_a_value_stays_a_value():
    values = ["a</parameter>b", "a\n</parameter>\nb", "</tool_call>", "<tool_call>", "</function>", "<think>", "\n", "",
              "if a < b:\n    pass", "<parameter=x", "<function=a>", "</tool_call></function>"]  # fmt: skip
    for code in values:
        text = format_call("python", {"code": code, "more": "y"}, "qwen3_coder") + CODER
        written = ToolCall("python", {"code": code, "more": "y"})
        assert parse_turn(text, "qwen3_coder").calls == (written, SEARCH)
    for code in ("a</parameter>\n</function>b", "</parameter><parameter=b>", "</function></tool_call>"):
        with pytest.raises(ValueError, match="cannot say a call of 'python' with code"):
            format_call("python", {"code": code}, "qwen3_coder")


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("", "expected <function=NAME>"),
        (f"<function={'x' * 300}></function>", "expected <function=NAME>"),
        ("<function=search>stray</function>", "expected <parameter=NAME>"),
        ("<function=search><parameter=query>x</function>", "expected <parameter=NAME>"),
        ("<function=search><parameter=query>x</parameter></function> thanks", "expected <parameter=NAME>"),
        ("<function=a><parameter=q>x</parameter><parameter=q>y</parameter></function>", "'q' occurs twice"),
        ("<function=search><parameter=q>\ud800</parameter></function>", "surrogates"),
    ],
)
def test_a_malformed_tagged_call_names_its_fault_and_the_next_counts(inside, says):
    found = parse_turn(tagged(inside) + CODER, "qwen3_coder")
    assert len(found.errors) == 1 and says in found.errors[0] and len(found.errors[0]) < 300
    assert found.calls == (SEARCH,)


# what each parameter's schema allows, and values that keep their types
OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
KINDS = {
    "text": ({"type": "string"}, ["3", "null", "None", "[1]", '"quoted"', "", " a ", "two\nlines\n", "0012", "é"]),
    "optional": (OPTIONAL, ["a", None, "null", "3", "true", '"null"', '"\\"null\\""', "", "null ", "[]"]),
    "nullable": ({"type": "string", "nullable": True}, ["a", None, "null", "5"]), "n": ({"type": "integer"}, [3, 0, 10**30]),
    "x": ({"type": "number"}, [0.1, 3, -1e-30, 2.0]), "flag": ({"type": "boolean"}, [True, False]),
    "maybe": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [3, None, 0]),
    "either": ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [3, "3", "three", "", "3.0", "true", "[1]", '"3"']),
    "items": ({"type": "array", "items": {"type": "integer"}}, [[1, 2], [], [[1, None], {"a": "b"}]]),
    "options": ({"type": "object"}, [{}, {"a": {"b": [1, 2.5, None, True, "x"]}}]),
    "choice": ({"enum": ["a", "1", 1, None]}, ["a", "1", 1, None]), "unknown": ({}, ["3", "a", "null"]),
}  # fmt: skip
TYPED = [{"type": "function", "function": {"name": "t", "parameters": {
    "type": "object", "properties": {name: schema for name, (schema, _) in KINDS.items()}}}}]  # fmt: skip


def test_values_keep_their_types_both_ways():
    for name, (_, values) in KINDS.items():
        for value in values:
            written = format_call("t", {name: value}, "qwen3_coder", TYPED)
            (call,) = parse_turn(written, "qwen3_coder", TYPED).calls
            assert (call.arguments, type(call.arguments[name])) == ({name: value}, type(value)), written


# ---- Llama 3
def test_llama_calls():
    as_text = '{"type": "function", "parameters": "{\\"query\\": \\"x\\"}", "name": "search"}'
    once = f"<|python_tag|>{LLAMA}", f"\n {LLAMA} \n", as_text
    for text, calls in (*((text, 1) for text in once), (f"{LLAMA}\n{LLAMA};{LLAMA}", 3)):
        found = parse_turn(text, "llama3")
        assert (found.calls, found.errors) == ((SEARCH,) * calls, ())
    good = parse_turn(f"{LLAMA}; {LLAMA}; {{'x'}}", "llama3")
    assert good.calls == (SEARCH, SEARCH) and len(good.errors) == 1
    for text in (f"{LLAMA} thanks", "<|python_tag|>search(x)", "<|python_tag|>", '{"answer": 3}'):
        assert parse_turn(text, "llama3").calls == () and len(parse_turn(text, "llama3").errors) == 1


def test_llamas_prose_may_hold_an_object():
    for text in (f"I will search.\n{LLAMA}", "{1, 2, 3}", "{}", "{x}", "```json\n" + LLAMA):
        found = parse_turn(text, "llama3")
        assert (found.text, found.calls, found.errors) == (text, (), ())
    for text in ('{"city": "Paris"}', '{"name": 3, "of": ["a"]}\nSo.'):  # and speaks of no tool
        found = parse_turn(f"<think>hm</think>{text}", "llama3", SCHEMA)
        assert (found.text, found.calls, found.errors) == (text, (), ())
    for text in ('{"tool": "t", "n": 3}', '{"name": "x"', '<|python_tag|>{"city": "Paris"}'):
        assert len(parse_turn(text, "llama3", SCHEMA).errors) == 1


# ---- anything
NAME = st.from_regex(r"[a-z_]{1,10}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(TEXT.filter(bool), st.dictionaries(TEXT, JSON, max_size=3), st.sampled_from(["hermes", "llama3"]))
def test_what_is_written_in_json_is_read_back(name, arguments, format):
    parsed = parse_turn(format_call(name, arguments, format), format)
    assert parsed.calls == (ToolCall(name, arguments),) and parsed.text == ""


@given(NAME, st.dictionaries(NAME, TEXT, max_size=3))
def test_what_is_written_in_tags_is_read_back(name, arguments):
    if not any("</parameter>" in value for value in arguments.values()):
        written = format_call(name, arguments, "qwen3_coder")
        assert parse_turn(written, "qwen3_coder").calls == (ToolCall(name, arguments),)


START, MIB = "<tool_call><function=t><parameter=text>", 2**20
REPEATED = (
    "<tool_call>", "<tool_call><function=a>", "<think>", " ", "<think></think>", "<|python_tag|>", '{"a":', "[", f"{LLAMA};", CODER,
    "<tool_call>{",
)  # fmt: skip
INSIDE = ("</parameter>", "</parameter>" + " " * 999, "<parameter=b>", "</function>" + " " * 999, "x")
LARGE = [
    *(piece * (MIB // len(piece)) for piece in REPEATED),
    *(START + piece * (MIB // len(piece)) for piece in INSIDE),
    f"{START}{'y' * MIB}</parameter></function></tool_call>",
    tagged("<function=t>" + "".join(f"<parameter=p{i}>1</parameter>" for i in range(30_000)) + "</function>"),
    "<tool_call> " + " " * MIB,
    '<tool_call>{"name": "t", "arguments": {"x": "' + '\\"' * (MIB // 2),
    tagged("{" + ",".join(f'"k{i}": {i}' for i in range(60_000)) + "}"),
    tagged('{"name": "t", "arguments": {"x": 1' + "0" * MIB + "}}"),
    tagged(f'{{"name": "t", "arguments": {{"x": [{"[[]]," * (MIB // 5)}1]}}}}'),
]


@pytest.mark.parametrize("format", FORMATS)
def test_one_mebibyte_is_parsed_in_one_walk(format, thread_time):
    """Time that grew with the square of the length would be far more on any machine."""
    for text in LARGE:
        start = thread_time()
        found = parse_turn(text, format, SCHEMA)
        assert len(found.calls) + len(found.errors) <= MAX_CALLS + 1
        assert thread_time() - start < 3, text[:60]


PIECES = [*(
    "<tool_call> </tool_call> <think> </think> <function= <function=t> </function> <parameter=n> </parameter> <|python_tag|> "
    '{ } [ ] " \\ \\u \ud800 \0 , : ; NaN - 1e999 null é <|im_end|> "name" "parameters" > ='
).split(" "), "\n", " "]  # fmt: skip


def test_mutated_calls_crash_nothing():
    """A fixed seed, so that a failure can be had again."""
    rng = random.Random(7)
    for _ in range(20_000):
        format = rng.choice(FORMATS)
        text = rng.choice([*ONE.values(), ONE[format] * 2, "<think>a</think>" + ONE[format]])
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(PIECES) + text[at + rng.choice((0, 0, 1, 5, 30)) :]
        found = parse_turn(text, format, SCHEMA)
        assert all(isinstance(c, ToolCall) and c.name and isinstance(c.arguments, dict) for c in found.calls)
        assert all(isinstance(e, str) and e for e in found.errors)
        for call in found.calls:
            json.dumps([call.name, call.arguments], allow_nan=False, ensure_ascii=False).encode()
