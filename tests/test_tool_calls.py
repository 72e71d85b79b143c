"""The other ways models write calls: what is a call, what is told to be malformed, and that nothing breaks or
stalls a parser.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import trl
from hypothesis import given
from hypothesis import strategies as st

from agentkit import StopReason, ToolCall, Trajectory
from agentkit.records import ToolResult, Turn
from agentkit.rollouts.call_formats import FORMATS, MAX_CALLS, detect_format, format_call, parse_turn
from agentkit.rollouts.call_json import MAX_DEPTH
from agentkit.rollouts.chat import ChatCodec
from agentkit.runs import read_trajectories, write_trajectories

SEARCH = ToolCall("search", {"query": "x"})
CODER = "<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>"
LLAMA = '{"name": "search", "parameters": {"query": "x"}}'
GLM = "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"
ONE = {"glm": GLM, "hermes": '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>', "qwen3_coder": CODER, "llama3": LLAMA}  # fmt: skip
SCHEMA = [{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {
    "text": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"}, "flag": {"type": "boolean"},
    "items": {"type": "array"}, "options": {"type": "object"}, "maybe": {"type": ["integer", "null"]}}}}}]  # fmt: skip


def coder(inside: str) -> str:
    return f"<tool_call>\n{inside}\n</tool_call>"


@pytest.mark.parametrize("format", FORMATS)
def test_a_call_is_read_and_prose_is_none(format):
    assert parse_turn(ONE[format], format).calls == (SEARCH,) and parse_turn(ONE[format], format).errors == ()
    prose = parse_turn("Answer: {1, 2} and so on", format)
    assert prose.calls == () and prose.text == "Answer: {1, 2} and so on"
    assert prose.errors == ()


@pytest.mark.parametrize("format", FORMATS)
def test_thoughts_do_not_call(format):
    assert parse_turn(f"<think>{ONE[format]}</think>\n{ONE[format]}", format).calls == (SEARCH,)
    assert parse_turn(f"<think>{ONE[format]}</think>", format).calls == ()
    assert parse_turn(f"<think>{ONE[format]}", format).calls == ()


def test_an_unknown_format_is_refused_with_those_there_are():
    with pytest.raises(
        ValueError, match="unknown tool-call format 'xml': use one of 'hermes', 'qwen3_coder', 'llama3'"
    ):
        parse_turn("", "xml")
    with pytest.raises(ValueError, match="unknown tool-call format"):
        ChatCodec(
            type("T", (), {"added_tokens_decoder": {}, "eos_token_id": 0, "chat_template": ""})(),
            "",
            [],
            "xml",
        )


# ---- Qwen3-Coder
@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), (" 3\n", 3), ("1.5", 1.5), ("true", True), ("True", True), ("[1]", [1]), ('{"a": 1}', {"a": 1}), ("null", None),
     ("three", "three"), ("NaN", "NaN"), ("1e999", "1e999"), ("9" * 6_000, "9" * 6_000), ("[" * 10_000, "[" * 10_000)],
)  # fmt: skip
def test_texts_become_what_the_schema_says_and_strings_stay(text, value):
    """A text that is no number stays a text, and the check of the call's types says what it must be."""
    for name in ("n", "x", "flag", "items", "options", "maybe"):
        found = parse_turn(
            coder(f"<function=t>\n<parameter={name}>\n{text}\n</parameter>\n</function>"),
            "qwen3_coder",
            SCHEMA,
        )
        if value != text:
            assert found.calls == (ToolCall("t", {name: value}),), (name, found)
        else:
            assert isinstance(found.calls[0].arguments[name], str)
    for name in ("text", "unknown"):
        found = parse_turn(
            coder(f"<function=t><parameter={name}>{text}</parameter></function>"), "qwen3_coder", SCHEMA
        )
        assert found.calls[0].arguments[name] == text.removesuffix("\n")
    assert (
        parse_turn(coder(f"<function=t><parameter=n>{text}</parameter></function>"), "qwen3_coder")
        .calls[0]
        .arguments["n"]
    )


@pytest.mark.parametrize(
    "code",
    "a</parameter>b|a\n</parameter>\nb|</tool_call>|<tool_call>|</function>|<think>|\n\n|| x |if a < b:\n    pass|<parameter=x|"
    "```|<function=a>|</tool_call></function>".split("|"),
)
def test_markup_inside_a_value_stays_a_value(code):
    text = format_call("python", {"code": code, "more": "y"}, "qwen3_coder") + CODER
    assert parse_turn(text, "qwen3_coder").calls == (ToolCall("python", {"code": code, "more": "y"}), SEARCH)


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("", "expected <function=NAME>"),
        (LLAMA, "expected <function=NAME>"),
        ("<function=>", "expected <function=NAME>"),
        ("<function=a<b></function>", "expected <function=NAME>"),
        (f"<function={'x' * 300}></function>", "expected <function=NAME>"),
        ("<function=search>", "expected <parameter=NAME>"),
        ("<function=search>stray</function>", "expected <parameter=NAME>"),
        ("<function=search><parameter=query>x</function>", "</parameter> is missing after 'query'"),
        ("<function=search><parameter=query>x</parameter>", "expected <parameter=NAME>"),
        ("<function=search><parameter=query>x</parameter></function> thanks", "expected <parameter=NAME>"),
        (
            "<function=search><parameter=q>x</parameter><parameter=q>y</parameter></function>",
            "'q' occurs twice",
        ),
        ("<function=search><parameter=q>\ud800</parameter></function>", "surrogates"),
    ],
)
def test_a_malformed_xml_call_names_its_fault_and_the_next_counts(inside, says):
    found = parse_turn(coder(inside) + CODER, "qwen3_coder")
    assert len(found.errors) == 1 and says in found.errors[0] and len(found.errors[0]) < 300
    assert found.calls == (SEARCH,)


def test_an_xml_call_cut_off_anywhere_is_malformed():
    for cut in range(len("<tool_call>"), len(CODER)):
        found = parse_turn(CODER[:cut], "qwen3_coder")
        assert not found.calls and len(found.errors) == 1, CODER[:cut]


# ---- Llama 3
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"<|python_tag|>{LLAMA}", 1),
        (f"\n {LLAMA} \n", 1),
        (f"{LLAMA}; {LLAMA}", 2),
        (f"{LLAMA}\n{LLAMA};{LLAMA}", 3),
        (LLAMA.replace("parameters", "arguments"), 1),
        (LLAMA.replace('{"name"', '{"type": "function", "name"'), 1),
        ('{"name": "search", "parameters": "{\\"query\\": \\"x\\"}"}', 1),
        ('{"parameters": {"query": "x"}, "name": "search"}', 1),
    ],
)
def test_llama_calls(text, calls):
    assert parse_turn(text, "llama3").calls == (SEARCH,) * calls and parse_turn(text, "llama3").errors == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LLAMA[:-1], "delimiter"),
        (LLAMA.replace('"', "'"), "property name"),
        (f"{LLAMA} thanks", "expected ; or the end"),
        ('{"answer": 3}', '"name" is missing'),
        ('{"name": "search", "parameters": ["x"]}', '"parameters" must be an object'),
        ('{"name": "search", "parameters": {"query": NaN}}', "NaN is not JSON"),
        ('{"name": "search", "name": "b"}', "occurs twice"),
        ('{"name": "search", "parameters": {"query": "\\ud800"}}', "surrogates"),
        ("<|python_tag|>search(x)", "Expecting value"),
        ("<|python_tag|>", "Expecting value"),
        ('{"a":' * 100_000, ""),
    ],
)
def test_a_malformed_llama_call_names_its_fault(text, says):
    found = parse_turn(text, "llama3")
    assert (
        found.calls == ()
        and len(found.errors) == 1
        and says in found.errors[0]
        and len(found.errors[0]) < 300
    )


def test_a_bad_llama_call_after_good_ones_keeps_those():
    found = parse_turn(f"{LLAMA}; {LLAMA}; {{'x'}}", "llama3")
    assert found.calls == (SEARCH, SEARCH) and len(found.errors) == 1
    many = parse_turn(";".join([LLAMA] * 30), "llama3")
    assert len(many.calls) == MAX_CALLS and "more than 16" in many.errors[0]


@pytest.mark.parametrize("text", [f"I will search.\n{LLAMA}", "{1, 2, 3}", "{}", "{x}", "```json\n" + LLAMA])
def test_prose_that_holds_an_object_is_prose(text):
    found = parse_turn(text, "llama3")
    assert (found.text, found.calls, found.errors) == (text, (), ())


def test_llama_answers_with_an_object_that_speaks_of_no_tool():
    for text in ('{"city": "Paris"}', '{"name": 3, "of": ["a"]}\nSo.'):
        found = parse_turn(f"<think>hm</think>{text}", "llama3", SCHEMA)
        assert (found.text, found.calls, found.errors) == (text, (), ())
    for text in ('{"tool": "t", "n": 3}', '{"name": "x"', '<|python_tag|>{"city": "Paris"}'):
        assert len(parse_turn(text, "llama3", SCHEMA).errors) == 1


# ---- all formats
def test_the_format_is_read_from_the_chat_template(tokenizer):
    assert ChatCodec(tokenizer, "", []).format == detect_format(tokenizer.chat_template) == "hermes"
    assert detect_format("..<tool_call>\n<function=' + name + '>..") == "qwen3_coder"
    assert detect_format("<|start_header_id|>ipython<|end_header_id|> <|python_tag|>") == "llama3"
    assert detect_format(None) == detect_format("") == detect_format("{{ messages }}") == "hermes"


def nested(depth: int, kind: str) -> str:
    if kind == "list":
        return '["[[", [], ' + "[" * (depth - 1) + "]" * depth
    return '{"a": ' * (depth - 1) + "{}" + "}" * (depth - 1)


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize(
    ("format", "as_text"),
    [("hermes", False), ("hermes", True), ("qwen3_coder", False), ("llama3", False), ("llama3", True)],
)
def test_arguments_that_nest_too_deeply_are_malformed_and_the_deepest_allowed_can_be_written(
    tmp_path, format, kind, as_text
):
    """Parsers read 600 levels, but records are copied and written by recursion: that would end a training
    run.
    """

    def parsed(depth: int):
        arguments = f'{{"items": {nested(depth, kind)}}}'
        written = json.dumps(arguments) if as_text else arguments
        text = {"hermes": f'<tool_call>{{"name": "t", "arguments": {written}}}</tool_call>',
                "llama3": f'{{"name": "t", "parameters": {written}}}',
                "qwen3_coder": coder(f"<function=t><parameter=items>{nested(depth, kind)}</parameter></function>")}  # fmt: skip
        return parse_turn(text[format], format, SCHEMA)

    for depth in (MAX_DEPTH + 1, 600, 900):
        assert parsed(depth).calls == ()
        assert parsed(depth).errors == (
            f"malformed tool call: the arguments nest deeper than {MAX_DEPTH} levels",
        )
    (call,) = parsed(MAX_DEPTH).calls
    turn = Turn("", (0, 0), (ToolResult(call.name, call.arguments, "Error", ok=False),))
    trajectory = Trajectory("t", "p", 0, 0, (), (), (), (), (turn,), StopReason.ANSWER)
    assert read_trajectories(write_trajectories(tmp_path / "t.parquet", [trajectory])) == [trajectory]


@pytest.mark.parametrize(
    "parameters",
    [None, {}, {"properties": None}, {"properties": {"x": True}}, {"properties": {"x": {"type": None}}}],
)
def test_a_schema_without_types_leaves_texts(parameters):
    schema = [{"type": "function", "function": {"name": "t", "parameters": parameters}}]
    found = parse_turn(coder("<function=t><parameter=x>1</parameter></function>"), "qwen3_coder", schema)
    assert found.calls == (ToolCall("t", {"x": "1"}),)


# what each parameter's schema allows, and values that keep their types
OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
KINDS = {
    "text": ({"type": "string"}, ["3", "null", "None", "true", "[1]", '"quoted"', "", " a ", "\n", "two\nlines\n", "\n\nif x:\n    y", "0012", "1e5", "é"]),
    "optional": (OPTIONAL, ["a", None, "null", "None", "3", "true", '"null"', '"quoted"', '"\\"null\\""', "", "null ", "none", "[]"]),
    "nullable": ({"type": "string", "nullable": True}, ["a", None, "null", "5"]), "names": ({"type": ["string", "null"]}, ["a", None, "null"]),
    "n": ({"type": "integer"}, [3, -7, 0, 10**30]), "x": ({"type": "number"}, [0.1, 3, -1e-30, 2.0, 1e300]),
    "flag": ({"type": "boolean"}, [True, False]), "maybe": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [3, None, 0]),
    "either": ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [3, "3", "three", "", "3.0", "true", "null", "[1]", '"3"']),
    "one": ({"oneOf": [{"type": "number"}, {"type": "string"}, {"type": "boolean"}]}, [3, 0.5, "0.5", True, "true", "True", "x"]),
    "items": ({"type": "array", "items": {"type": "integer"}}, [[1, 2], [], [[1, None], {"a": "b"}]]),
    "options": ({"type": "object"}, [{}, {"a": {"b": [1, 2.5, None, True, "x"]}}]),
    "deep": ({"anyOf": [{"anyOf": [{"type": "array"}, {"type": "null"}]}, {"type": "string"}]}, [[1], None, "[1]", "null", "a", "{}"]),
    "choice": ({"enum": ["a", "1", 1, None]}, ["a", "1", 1, None]), "unknown": ({}, ["3", "a", "null"]), "object": ({"type": "object", "nullable": True}, [None, {}]),
}  # fmt: skip
TYPED = [{"type": "function", "function": {"name": "t", "parameters": {
    "type": "object", "properties": {name: schema for name, (schema, _) in KINDS.items()}}}}]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_values_keep_their_types_through_xml_both_ways(name):
    for value in KINDS[name][1]:
        written = format_call("t", {name: value}, "qwen3_coder", TYPED)
        (call,) = parse_turn(written, "qwen3_coder", TYPED).calls
        assert (call.arguments, type(call.arguments[name])) == ({name: value}, type(value)), written


TEMPLATES = Path(trl.__file__).parent / "chat_templates"


@pytest.mark.parametrize("template", ["qwen3_5_think", "qwen3_6", "qwen3_8", "nemotron_3_nano"])
def test_values_keep_their_types_as_the_models_own_template_writes_them(tokenizer, template):
    """Where a template writes two values alike, as "3" and 3 for a parameter that may be both, none can."""
    other = copy.deepcopy(tokenizer)
    other.chat_template = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    alike = {"optional": ["null", "None", '"null"', '"\\"null\\""'], "nullable": ["null"], "names": ["null"], "either": ["3", '"3"'],
             "one": ["0.5", "true", "True"], "deep": ["[1]", "null"], "choice": ["1"], "text": []}  # fmt: skip
    for name, (_, values) in KINDS.items():
        for value in values:
            if isinstance(value, str) and (value != value.strip() or value in alike.get(name, [])):
                continue
            message = {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "t", "arguments": {name: value}}}],
            }
            text = other.apply_chat_template(
                [{"role": "user", "content": "q"}, message], tools=TYPED, tokenize=False
            )
            text = text[text.rindex("<tool_call>") :].partition(other.eos_token)[0]
            (call,) = parse_turn(text, "qwen3_coder", TYPED).calls
            assert (call.arguments, type(call.arguments[name])) == ({name: value}, type(value)), text


@pytest.mark.parametrize(
    "code",
    [
        "a</parameter>\n</function>b",
        "</parameter><parameter=b>",
        "</function></tool_call>",
        "</parameter></tool_call>",
    ],
)
def test_a_value_that_xml_cannot_hold_is_refused(code):
    with pytest.raises(ValueError, match="cannot say a call of 'python' with code"):
        format_call("python", {"code": code}, "qwen3_coder")


NAME = st.from_regex(r"[a-z_]{1,10}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(NAME, st.dictionaries(NAME, TEXT, max_size=3), st.sampled_from(["hermes", "qwen3_coder", "llama3"]))
def test_what_is_written_is_read_back(name, arguments, format):
    if format == "qwen3_coder" and any("</parameter>" in value for value in arguments.values()):
        return
    assert parse_turn(format_call(name, arguments, format), format).calls == (ToolCall(name, arguments),)


START, MIB = "<tool_call><function=t><parameter=text>", 2**20
LARGE = [
    *(
        piece * (MIB // len(piece))
        for piece in ("<tool_call>", "<tool_call><function=a>", "<function=", "<think>", " ")
    ),
    *(
        piece * (MIB // len(piece))
        for piece in ("<think></think>", "<|python_tag|>", "{", '{"', '{"a":', "[", f"{LLAMA};", CODER)
    ),
    *(
        START + piece * (MIB // len(piece))
        for piece in ("</parameter>", "</parameter>" + " " * 999, "<parameter=b>", "</function>")
    ),
    *(
        START + piece * (MIB // len(piece))
        for piece in ("</function> ", "</function>" + " " * 999, "x", "\n")
    ),
    json.dumps({"name": "t", "parameters": {"x": "y" * MIB}}),
    f"{START}{'y' * MIB}</parameter></function></tool_call>",
    "<tool_call><function=t>"
    + "".join(f"<parameter=p{i}>1</parameter>" for i in range(30_000))
    + "</function></tool_call>",
    "<tool_call> " + " " * MIB,
    '<tool_call>{"name": "t", "arguments": {"x": "' + '\\"' * (MIB // 2),
    "<tool_call>{" + ",".join(f'"k{i}": {i}' for i in range(60_000)) + "}</tool_call>",
    '<tool_call>{"name": "t", "arguments": {"x": 1' + "0" * MIB + "}}</tool_call>",
    f"<tool_call>{json.dumps({'name': 't', 'arguments': json.dumps({'x': '[' * (MIB // 2)})})}</tool_call>",
    f'<tool_call>{{"name": "t", "arguments": {{"x": [{"[[]]," * (MIB // 5)}1]}}}}</tool_call>',
    f'<tool_call>{{"name": "t", "arguments": {{"x": [{"[[]]," * 24_900}1]}}}}</tool_call>',
    f'<tool_call>{{"name": "t", "arguments": {{"x": [{(" " * 16 + "{},") * 49_900}1]}}}}</tool_call>',
    "<tool_call>{" * (MIB // 12),
]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("text", LARGE, ids=range(len(LARGE)))
def test_one_mebibyte_is_parsed_in_one_walk(text, format, thread_time):
    """P2 asks for 0.1 s, which idle cores keep. Here: that time does not grow with the square of the
    length, which would be far more on any machine.
    """
    start = thread_time()
    found = parse_turn(text, format, SCHEMA)
    assert len(found.calls) + len(found.errors) <= MAX_CALLS + 1
    assert thread_time() - start < 3


PIECES = (
    "<tool_call> </tool_call> <think> </think> <function= <function=t> </function> <parameter=n> </parameter> "
    '<|python_tag|> { } [ ] " \\ \\u \ud800 \0 , : ; NaN - 1e999 null é <|im_end|> "name" '
    '"parameters" > ='
).split(" ") + ["\n", " "]


def mutated(count: int, formats=FORMATS, seed: int = 7) -> None:
    """Mutations of good calls in every format; by hand: python -c "import test_tool_calls as t;
    t.mutated(100_000)".
    """
    rng = random.Random(seed)
    for _ in range(count):
        format = rng.choice(formats)
        text = rng.choice([*ONE.values(), ONE[format] * 2, "<think>a</think>" + ONE[format]])
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(PIECES) + text[at + rng.choice((0, 0, 1, 5, 30)) :]
        found = parse_turn(text, format, SCHEMA)
        assert all(isinstance(c, ToolCall) and c.name and isinstance(c.arguments, dict) for c in found.calls)
        assert all(isinstance(e, str) and e for e in found.errors)
        for call in found.calls:
            json.dumps([call.name, call.arguments], allow_nan=False, ensure_ascii=False).encode()


def test_mutated_calls_crash_nothing():
    mutated(10_000)
