"""Rows of public data sets as tasks, each with the verifier that its answers need.

Leaves out reading and checking them (hub), and rows whose tests cannot be run without files or a network.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentkit.records import DataError, Task
from agentkit.rows import messages_of
from agentkit.tasks.family import difficulty
from agentkit.verifiers.programs import in_sandbox

Row = Mapping[str, Any]
AGENTRL = ("deepscaler", "omni_math", "numina_math", "taco_code", "leetcode_code", "gpqa_science")
RECORD_S = 10.0  # for a reference solution and its tests
PARAGRAPHS = 40  # of a question's pages that are kept
LEETCODE = """from typing import *
from collections import *
from math import *
from builtins import *
import heapq, bisect, itertools, functools, re"""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set lies and how its rows become tasks."""

    path: str  # on the hub
    config: str | None
    split: str  # read where none is asked for
    licence: str
    # without split, and family where all rows are of one; raises DataError, or anything for another schema
    convert: Callable[[Row], Task]
    sources: tuple[str, ...] = ()  # families of its rows, where they come from several data sets


def text_of(row: Row, *names: str) -> str:
    """The first of these fields that the row has, which must be text."""
    for name in names:
        if row.get(name) is not None:
            if not isinstance(row[name], str):
                raise DataError(f"{name} is {type(row[name]).__name__}, not text")
            return row[name]
    raise DataError(f"it lacks {' or '.join(repr(name) for name in names)}")


def _texts(row: Row, name: str) -> list[str]:
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{name} is not a list of texts")
    return value


# ---- questions
def _multihop(row: Row) -> Task:
    """HotpotQA, 2WikiMultiHopQA: ``context`` is {title, sentences} or a list of [title, sentences] pairs."""
    context = row.get("context") or []
    if not isinstance(context, list):
        context = zip(context["title"], context["sentences"], strict=True)
    passages = [f"{title}: {''.join(sentences)}" for title, sentences in context]
    facts = row.get("supporting_facts") or []
    titles = facts["title"] if isinstance(facts, Mapping) else [fact[0] for fact in facts]
    evidence = list(dict.fromkeys(titles))
    return Task(
        text_of(row, "id", "_id"),
        text_of(row, "question"),
        text_of(row, "answer"),
        {"kind": "exact", "rule": "squad"},
        difficulty=difficulty(max(1, len(evidence))),
        tools=("search",),
        meta={"template": str(row.get("type", "")), "passages": passages, "evidence": evidence},
    )


def _trivia(row: Row) -> Task:
    """TriviaQA: ``answer`` has ``value`` and ``aliases``; the paragraphs of ``entity_pages`` are searched."""
    answer = row["answer"]
    if not isinstance(answer, Mapping):
        raise DataError("answer is not an object with value and aliases")
    verifier = {"kind": "exact", "rule": "squad", "aliases": _texts(answer, "aliases")}
    question, value = text_of(row, "question"), text_of(answer, "value")
    pages = row.get("entity_pages") or {"title": (), "wiki_context": ()}
    passages = [
        f"{title}: {paragraph.strip()}"
        for title, text in zip(pages["title"], pages["wiki_context"], strict=True)
        for paragraph in text.split("\n\n")
        if paragraph.strip()
    ]
    meta = {"passages": passages[:PARAGRAPHS]}
    return Task(text_of(row, "question_id"), question, value, verifier, tools=("search",), meta=meta)


def _gsm8k(row: Row) -> Task:
    """GSM8K: ``answer`` ends in "#### number". The calculator must be used (meta["required_tools"])."""
    solution, mark, number = text_of(row, "answer").rpartition("####")
    if not mark:
        raise DataError("its answer has no '#### number'")
    question = text_of(row, "question").strip()
    return Task(
        "",
        f"{question}\nUse the calculator for every computation. The answer is one number.",
        re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", number.strip()),  # commas between thousands
        "numeric",
        difficulty=difficulty(max(1, len(re.findall(r"<<[^<>]*>>", solution)))),
        tools=("calculator",),
        meta={"required_tools": ["calculator"], "solution": solution.strip()},
    )


# ---- programs
def _mbpp(row: Row) -> Task:
    """MBPP, full or sanitized: ``text`` or ``prompt``, ``code``, ``test_list`` and imports for the tests."""
    code, tests = text_of(row, "code").replace("\r\n", "\n"), _texts(row, "test_list")
    imports = row.get("test_imports") or row.get("test_setup_code") or ""
    setup = "\n".join(imports) if isinstance(imports, list) else str(imports)
    entry = _called(code, [*tests, setup])
    prompt = f"{text_of(row, 'text', 'prompt').strip()}\nWrite Python. It must pass: {tests[0]}"
    verifier = {"kind": "code", "entry": entry, "tests": record(code, tests, entry, setup), "setup": setup}
    return Task(str(row["task_id"]), prompt, code, verifier, tools=("python",))


def _called(code: str, tests: list[str]) -> str:
    defined = {n.name for n in ast.walk(ast.parse(code)) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    calls = [node.func for test in tests for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    names = {function.id for function in calls if isinstance(function, ast.Name)} & defined
    if len(names) != 1:
        raise DataError(f"its tests call {len(names)} functions of its code, not one")
    return names.pop()


def record(reference: str, tests: list[str], entry: str, setup: str = "") -> list[Any]:
    """Tests written as source as tests with values: the calls they make, and what the reference gives.

    They run once, in the sandbox. Whatever a test would also have taken is lost, such as a list in another
    order. Raises DataError where a test fails, calls nothing, expects an exception, or gets what JSON cannot
    hold.
    """
    reports = in_sandbox("record", (setup, reference, entry, tests), RECORD_S)
    passed = sum(message == "passed" for _, message in reports)
    calls = [message for number, message in reports if number == -1]
    if passed < len(tests) or not calls or None in calls:
        raise DataError(f"its code passes {passed} of its {len(tests)} tests, in {len(calls)} calls")
    return [_in_short(call) for call in calls]


def _in_short(call: dict[str, Any]) -> Any:
    """A test as a pair, where JSON holds its arguments as they are."""
    arguments = ast.literal_eval(call["args"])
    is_json = repr(json.loads(json.dumps(arguments, default=str))) == call["args"]
    return [arguments, call["expected"]] if is_json and not call["kwargs"] else call


def _humaneval(row: Row) -> Task:
    """HumanEval: ``prompt`` is helpers and a signature, and stands before ``canonical_solution``."""
    prompt, entry = text_of(row, "prompt"), text_of(row, "entry_point")
    helpers, mark, _ = prompt.partition(f"def {entry}(")
    if not mark:
        raise DataError(f"its prompt does not define {entry[:60]!r}")
    gold = prompt + text_of(row, "canonical_solution")
    tests = record(gold, [f"{text_of(row, 'test')}\ncheck(candidate)\n"], entry, helpers)
    verifier = {"kind": "code", "entry": entry, "tests": tests, "setup": helpers}
    question = f"Complete this Python function.\n{prompt}"
    return Task(text_of(row, "task_id"), question, gold, verifier, tools=("python",))


def _agentrl(row: Row) -> Task:
    """Open-AgentRL (arXiv 2510.11701): a row's source is its family, open_agentrl where it is not known.

    A program scores the share of its tests.
    """
    messages = messages_of({"messages": row["prompt"]})
    question = "\n".join(message.content for message in messages if message.role == "user")
    truth, source = text_of(row["reward_model"], "ground_truth"), text_of(row, "data_source")
    extra = row.get("extra_info") if isinstance(row.get("extra_info"), Mapping) else {}
    name = "" if extra.get("index") is None else f"{source}-{extra['index']}"
    family = source if source in AGENTRL else "custom"
    tools, meta = ("code_interpreter",), {"template": source}
    task = Task(name, question, truth, "symbolic", family, tools=tools, meta=meta)
    if "code" in source or str(row.get("ability", "")).lower() in ("code", "coding"):
        return replace(task, answer="", verifier={"kind": "code", "partial": True} | _code_tests(truth))
    if choice := re.fullmatch(r"\(?([A-Z])\)?", truth.strip()):
        return replace(task, answer=choice[1], verifier="exact")
    return task


def _code_tests(truth: str) -> dict[str, Any]:
    """Tests as APPS and TACO write them ({inputs, outputs, fn_name}), as pairs, or as LeetCode's asserts."""
    try:
        cases = json.loads(truth)
    except ValueError:
        return _asserts(truth)
    if isinstance(cases, Mapping) and isinstance(cases.get("functional"), str):
        return _asserts(cases["functional"])
    if isinstance(cases, list):
        cases = {"inputs": [case["input"] for case in cases], "outputs": [case["output"] for case in cases]}
    inputs, outputs, name = cases["inputs"], cases["outputs"], cases.get("fn_name")
    if not inputs or len(inputs) != len(outputs):
        raise DataError(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
    if not name:
        pairs = zip(map(_lines, inputs), map(_lines, outputs), strict=True)
        return {"tests": [{"stdin": given, "stdout": gives} for given, gives in pairs]}
    if not isinstance(name, str) or not name.isidentifier():
        raise DataError(f"fn_name is {name!r:.60}, not the name of a function")
    return {"tests": _function_tests(inputs, outputs), "entry": name, "setup": LEETCODE}


def _function_tests(inputs: list[Any], outputs: list[Any]) -> list[list[Any]]:
    """Pairs of arguments and result. APPS wraps results in a list; arguments may be text, JSON a line."""
    arguments = [i if isinstance(i, list) else [json.loads(line) for line in i.splitlines()] for i in inputs]
    encoded = isinstance(inputs[0], str)
    results = [json.loads(o) if encoded and isinstance(o, str) else o for o in outputs]
    if not encoded and all(isinstance(result, list) and len(result) == 1 for result in results):
        results = [result[0] for result in results]
    return [list(pair) for pair in zip(arguments, results, strict=True)]


def _lines(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "\n".join(value)


def _asserts(source: str) -> dict[str, Any]:
    """Asserts ``candidate(..) == literal`` as arguments and expected values; others need a reference."""
    tests, names = [], set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assert(
                test=ast.Compare(left=ast.Call() as call, ops=[ast.Eq()], comparators=[value])
            ) if all(keyword.arg for keyword in call.keywords):
                named = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
                args = [_literal(argument) for argument in call.args]
                tests.append({"args": args, "kwargs": named, "expected": _literal(value)})
                names.add(ast.unparse(call.func))
            case ast.Assert():
                raise DataError(
                    "it has a test other than 'assert candidate(...) == value', which needs a reference "
                    "solution"
                )
    if len(names) != 1:
        raise DataError(f"its tests hold {len(tests)} asserts on {len(names)} functions")
    (entry,) = names
    if entry == "candidate":  # the argument of a final ``check(...)``
        (*_, entry) = re.findall(r"^check\((?!candidate\))(.+)\)\s*$", source, re.MULTILINE)
    return {"tests": tests, "entry": entry, "setup": LEETCODE}


def _literal(node: ast.AST) -> Any:
    return json.loads(json.dumps(ast.literal_eval(node), allow_nan=False))


SOURCES: dict[str, Source] = {
    "hotpotqa": Source("hotpotqa/hotpot_qa", "distractor", "train", "CC BY-SA 4.0", _multihop),
    "2wikimultihopqa": Source("framolfese/2WikiMultihopQA", None, "train", "Apache-2.0", _multihop),
    "triviaqa": Source("mandarjoshi/trivia_qa", "rc.wikipedia", "train", "see the data set's page", _trivia),
    "gsm8k": Source("openai/gsm8k", "main", "train", "MIT", _gsm8k),
    "mbpp": Source("google-research-datasets/mbpp", "full", "train", "CC BY 4.0", _mbpp),
    "humaneval": Source("openai/openai_humaneval", None, "test", "MIT", _humaneval),
    "open_agentrl": Source("y-ohtani/open_agentrl_grpo_2k", None, "train", "Apache-2.0", _agentrl, AGENTRL),
}
