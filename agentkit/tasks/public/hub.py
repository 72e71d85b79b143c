"""Public data sets as tasks, from the Hugging Face hub or from local files of the same schema.

Every source maps a row to a Task with the verifier that its answers need. A broken row is an error that names
file and row, or is skipped and counted. GAIA is gated and has a module of its own
(agentkit.tasks.public.gaia). Leaves out: downloading by any other way than ``datasets.load_dataset``, and
rows whose tests cannot be run without files or a network.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentkit.records import Task
from agentkit.runs import SPLITS, RunError
from agentkit.tasks.suite import difficulty
from agentkit.verifiers import MAX_ANSWER, MAX_CODE, verify
from agentkit.verifiers.isolated.harness import pack
from agentkit.verifiers.programs import MAX_TESTS

MAX_PROMPT = 50_000  # characters
Row = Mapping[str, Any]


class HubError(RunError):
    """A data set cannot be loaded, or a row of it is broken. The message says what to do."""


class RowError(ValueError):
    """One row is broken. The message says how."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set lies and how its rows become tasks."""

    path: str  # on the hub
    config: str | None
    split: str  # read where none is asked for
    licence: str
    convert: Callable[[Row], Task]  # without id, family and split; raises RowError


@dataclass(frozen=True, slots=True)
class Loaded:
    """Tasks of a data set, and the sentences about the rows that were left out."""

    tasks: list[Task]
    skipped: list[str]


def load(
    name: str,
    source: str | Path | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    skip_broken: bool = False,
) -> Loaded:
    """Tasks of a public data set.

    Args:
        name: one of SOURCES.
        source: local files of the same schema: one .jsonl, .json or .parquet file, or a folder with one named
            after the split; by default the data set's place on the hub.
        split: the data set's own name of a split. Its tasks keep it where it is train, validation or test;
            others are test.
        limit: read at most that many rows, at least 1.
        skip_broken: leave broken rows out and count them, instead of stopping at the first.

    Raises:
        HubError: an unknown name, a wrong limit, a source that cannot be read (offline, gated, missing), or a
            broken row.
    """
    if name not in SOURCES:
        raise HubError(
            f"unknown data set {name!r}: use one of {', '.join(SOURCES)}, or agentkit.tasks.public.gaia for "
            "GAIA"
        )
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise HubError(f"limit is {limit!r}; it must be a whole number of at least 1, or None")
    spec = SOURCES[name]
    split = split or spec.split
    place = str(source or spec.path)
    rows = _local_rows(Path(source), split) if source else enumerate(_hub_rows(spec, split), start=1)
    tasks, skipped, seen = [], [], set()
    for number, row in itertools.islice(rows, limit):
        try:
            task = _task(spec, name, split, number, row)
            if task.id in seen:
                raise RowError(f"its id {task.id[:60]!r} occurs twice")
        except RowError as error:
            sentence = f"{place}, row {number}: {error}"
            if not skip_broken:
                raise HubError(f"{sentence}. Mend the row, or skip broken rows.") from None
            skipped.append(sentence)
            continue
        seen.add(task.id)
        tasks.append(task)
    if not tasks:
        raise HubError(f"{place} holds no usable task for the split {split!r} ({len(skipped)} broken rows)")
    return Loaded(tasks, skipped)


def _task(spec: Source, name: str, split: str, number: int, row: Any) -> Task:
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, Mapping):
        raise RowError(f"it is {type(row).__name__}, not an object")
    try:
        task = spec.convert(row)
    except RowError:
        raise
    except Exception as error:  # a row may hold anything
        raise RowError(
            f"it does not fit the schema of {name} ({type(error).__name__}: {str(error)[:80]})"
        ) from None
    limit = MAX_CODE if _kind(task) == "code" else MAX_ANSWER
    if not 0 < len(task.prompt.strip()) <= MAX_PROMPT:
        raise RowError(
            f"its question has {len(task.prompt.strip())} characters; 1 to {MAX_PROMPT} are allowed"
        )
    if not (0 < len(task.answer.strip()) <= limit or (_kind(task) == "code" and not task.answer)):
        raise RowError(f"its answer has {len(task.answer.strip())} characters; 1 to {limit} are allowed")
    where = split if split in SPLITS else "test"
    meta = task.meta | {"source": spec.path, "licence": spec.licence}
    _check_gold(task)
    return replace(
        task, id=f"{name}-{task.id or f'{split}-{number:06d}'}", family=name, split=where, meta=meta
    )


def _check_gold(task: Task) -> None:
    """Refuse a gold answer that fails its own verifier, and tests that cannot be run. Programs are left to
    the audit.
    """
    if _kind(task) in ("exact", "numeric") and (score := verify(task, task.answer)).value != 1.0:
        raise RowError(f"its answer fails its own verifier: {score.why[:200]}")
    if _kind(task) == "code":
        tests = task.verifier["tests"]
        if len(tests) > MAX_TESTS:
            raise RowError(f"it has {len(tests)} tests; {MAX_TESTS} are allowed")
        try:
            for test in tests:
                pack(test)
            json.dumps(tests, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise RowError(f"its tests hold a value that cannot be tested: {error}") from None


def _kind(task: Task) -> str:
    return task.verifier["kind"]


# ---- reading
# ---------------------------------------------------------------------------------------------------------
def _hub_rows(spec: Source, split: str) -> Iterable[Row]:
    from datasets import load_dataset

    try:
        return load_dataset(spec.path, spec.config, split=split)
    except Exception as error:  # the libraries raise many kinds
        text = " ".join(f"{type(error).__name__}: {error}".split())
        if re.search(r"gated|401|403|authenticat", text, re.IGNORECASE):
            way = f"it is gated: accept its terms at https://huggingface.co/datasets/{spec.path} and log in with 'hf auth login'"
        elif re.search(r"split|config", text, re.IGNORECASE) and "Connection" not in text:
            way = "check the split"
        else:
            way = "go online (unset HF_HUB_OFFLINE), or pass the path of local files of the same schema"
        raise HubError(f"{spec.path} could not be loaded from the hub ({text[:160]}): {way}") from None


def _local_rows(path: Path, split: str) -> Iterator[tuple[int, Any]]:
    """Numbered rows of a local file; a line that is no JSON object is given as a RowError."""
    if os.path.isdir(path):  # unlike Path's, false for a name that no file can have
        found = [
            f
            for f in sorted(path.iterdir())
            if f.stem == split and f.suffix in (".jsonl", ".json", ".parquet")
        ]
        if not found:
            raise HubError(
                f"{path} holds no {split}.jsonl, {split}.json or {split}.parquet: name a file, or another "
                "split"
            )
        path = found[0]
    if path.suffix not in (".jsonl", ".json", ".parquet"):
        raise HubError(f"{path} is no .jsonl, .json or .parquet file")
    if not os.path.isfile(path):
        raise HubError(f"{path} does not exist: check the path")
    return _READERS[path.suffix](path)


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    yield number, RowError(f"it is not valid JSON ({error})")


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        rows = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError, OSError) as error:
        raise HubError(f"{path} is not valid JSON ({error}): fetch it again") from None
    rows = rows.get("data") if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise HubError(f"{path} must hold a list of objects, one a task")
    return enumerate(rows, start=1)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return enumerate(pq.read_table(path).to_pylist(), start=1)
    except (pa.ArrowException, OSError) as error:
        raise HubError(f"{path} is not a readable Parquet file ({error}): fetch it again") from None


_READERS = {".jsonl": _jsonl_rows, ".json": _json_rows, ".parquet": _parquet_rows}


# ---- rows to tasks
# ---------------------------------------------------------------------------------------------------
def _text(row: Row, *names: str) -> str:
    """The first of these fields that the row has, which must be text."""
    for name in names:
        if row.get(name) is not None:
            if not isinstance(row[name], str):
                raise RowError(f"{name} is {type(row[name]).__name__}, not text")
            return row[name]
    raise RowError(f"it lacks {' or '.join(repr(name) for name in names)}")


def _texts(row: Row, name: str) -> list[str]:
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RowError(f"{name} is not a list of texts")
    return value


def _multihop(row: Row) -> Task:
    """HotpotQA, 2WikiMultiHopQA: ``question``, ``answer``, ``context`` as {title, sentences} or as [title,
    sentences] pairs.
    """
    context = row.get("context") or []
    context = (
        context
        if isinstance(context, list)
        else list(zip(context["title"], context["sentences"], strict=True))
    )
    passages = [f"{title}: {''.join(sentences)}" for title, sentences in context]
    facts = row.get("supporting_facts") or []
    titles = facts["title"] if isinstance(facts, Mapping) else [fact[0] for fact in facts]
    meta = {
        "template": str(row.get("type", "")),
        "passages": passages,
        "evidence": list(dict.fromkeys(titles)),
    }
    return Task(
        _text(row, "id", "_id"),
        _text(row, "question"),
        _text(row, "answer"),
        {"kind": "exact", "rule": "squad"},
        difficulty=difficulty(max(1, len(meta["evidence"]))),
        tools=("search",),
        meta=meta,
    )


def _trivia(row: Row) -> Task:
    """TriviaQA: ``question_id``, ``question``, ``answer`` with ``value`` and ``aliases``."""
    answer = row["answer"]
    if not isinstance(answer, Mapping):
        raise RowError("answer is not an object with value and aliases")
    verifier = {"kind": "exact", "rule": "squad", "aliases": _texts(answer, "aliases")}
    return Task(
        _text(row, "question_id"), _text(row, "question"), _text(answer, "value"), verifier, tools=("search",)
    )


def _gsm8k(row: Row) -> Task:
    """GSM8K: ``question`` and an ``answer`` that ends in "#### number". The calculator must be used
    (meta["required_tools"]).
    """
    solution, mark, number = _text(row, "answer").rpartition("####")
    if not mark:
        raise RowError("its answer has no '#### number'")
    steps = len(re.findall(r"<<[^<>]*>>", solution))
    prompt = f"{_text(row, 'question').strip()}\nUse the calculator for every computation. The answer is one number."
    meta = {"required_tools": ["calculator"], "solution": solution.strip()}
    level, number = (difficulty(max(1, steps)), re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", number.strip()))
    return Task("", prompt, number, "numeric", difficulty=level, tools=("calculator",), meta=meta)


def _mbpp(row: Row) -> Task:
    """MBPP, full or sanitized: ``text`` or ``prompt``, ``code``, ``test_list`` and imports for the tests."""
    code, tests = _text(row, "code").replace("\r\n", "\n"), _texts(row, "test_list")
    entry = _called(code, tests)
    imports = row.get("test_imports") or row.get("test_setup_code") or ""
    setup = "\n".join(imports) if isinstance(imports, list) else str(imports)
    prompt = f"{_text(row, 'text', 'prompt').strip()}\nWrite Python. It must pass: {tests[0]}"
    verifier = {"kind": "code", "entry": entry, "tests": tests, "setup": setup}
    return Task(str(row["task_id"]), prompt, code, verifier, tools=("python",))


def _called(code: str, tests: list[str]) -> str:
    """The one function of the code that the tests call."""
    defined = {n.name for n in ast.walk(ast.parse(code)) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    calls = [node.func for test in tests for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    called = [function.id for function in calls if isinstance(function, ast.Name)]
    names = list(dict.fromkeys(name for name in called if name in defined))
    if len(names) != 1:
        raise RowError(f"its tests call {len(names)} functions of its code, not one")
    return names[0]


def _humaneval(row: Row) -> Task:
    """HumanEval: ``prompt`` (imports, helpers, signature, docstring), ``canonical_solution``, ``test``,
    ``entry_point``.
    """
    prompt, entry = _text(row, "prompt"), _text(row, "entry_point")
    helpers, mark, _ = prompt.partition(f"def {entry}(")
    if not mark:
        raise RowError(f"its prompt does not define {entry[:60]!r}")
    verifier = {
        "kind": "code",
        "entry": entry,
        "tests": [f"{_text(row, 'test')}\ncheck(candidate)\n"],
        "setup": helpers,
    }
    gold = prompt + _text(row, "canonical_solution")
    return Task(
        _text(row, "task_id"), f"Complete this Python function.\n{prompt}", gold, verifier, tools=("python",)
    )


def _agentrl(row: Row) -> Task:
    """The Open-AgentRL schema (arXiv 2510.11701): ``data_source``, ``prompt``, ``ability``,
    ``reward_model.ground_truth``.
    """
    messages, reward = row["prompt"], row["reward_model"]
    question = "\n".join(_text(message, "content") for message in messages if message.get("role") == "user")
    truth, source = _text(reward, "ground_truth"), _text(row, "data_source")
    extra = row.get("extra_info") if isinstance(row.get("extra_info"), Mapping) else {}
    ident = "" if extra.get("index") is None else f"{source}-{extra['index']}"
    task = Task(ident, question, truth, "symbolic", tools=("python",), meta={"template": source})
    if "code" not in source and str(row.get("ability", "")).lower() not in ("code", "coding"):
        choice = re.fullmatch(r"\(?([A-Z])\)?", truth.strip())
        return replace(task, answer=choice[1], verifier="exact") if choice else task
    return replace(task, answer="", verifier={"kind": "code"} | _code_tests(truth))


def _code_tests(truth: str) -> dict[str, Any]:
    """Tests in a ground truth: APPS and TACO's {inputs, outputs, fn_name}, a list of {input, output}, or
    LeetCode's asserts.
    """
    try:
        found = json.loads(truth)
    except ValueError:
        return _asserts(truth)
    if isinstance(found, Mapping) and isinstance(found.get("functional"), str):
        return _asserts(found["functional"])
    if isinstance(found, list):
        found = {"inputs": [case["input"] for case in found], "outputs": [case["output"] for case in found]}
    inputs, outputs, name = found["inputs"], found["outputs"], found.get("fn_name")
    if not inputs or len(inputs) != len(outputs):
        raise RowError(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
    if not name:
        return {
            "tests": [{"stdin": _lines(i), "stdout": _lines(o)} for i, o in zip(inputs, outputs, strict=True)]
        }
    if not isinstance(name, str) or not name.isidentifier():
        raise RowError(f"fn_name is {name!r:.60}, not the name of a function")
    arguments = [i if isinstance(i, list) else [json.loads(line) for line in i.splitlines()] for i in inputs]
    results = [json.loads(o) if isinstance(o, str) and isinstance(inputs[0], str) else o for o in outputs]
    if all(isinstance(r, list) and len(r) == 1 for r in results):  # APPS wraps every result in a list
        results = [r[0] for r in results]
    return {
        "tests": [list(pair) for pair in zip(arguments, results, strict=True)],
        "entry": name,
        "setup": _LEETCODE,
    }


_LEETCODE = "from typing import *\nfrom collections import *\nfrom math import *\nimport heapq, bisect, itertools, functools, re"


def _lines(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise RowError(f"standard input or output is {type(value).__name__}, not text")
    return value


def _asserts(source: str) -> dict[str, Any]:
    """Asserts of the form ``assert candidate(...) == literal`` as arguments and expected values; other tests
    need a reference.
    """
    tests, names = [], set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            call, operators = (
                getattr(node.test, "left", None),
                [type(op) for op in getattr(node.test, "ops", ())],
            )
            if (
                operators != [ast.Eq]
                or not isinstance(call, ast.Call)
                or not all(k.arg for k in call.keywords)
            ):
                raise RowError(
                    "it has a test other than 'assert candidate(...) == value', which needs a reference "
                    "solution"
                )
            named = {k.arg: _literal(k.value) for k in call.keywords}
            expected = _literal(node.test.comparators[0])
            tests.append({"args": [_literal(a) for a in call.args], "kwargs": named, "expected": expected})
            names.add(ast.unparse(call.func))
    if not tests or len(names) != 1:
        raise RowError(f"its tests hold {len(tests)} asserts on {len(names)} functions")
    (entry,) = names
    return {
        "tests": tests,
        "entry": entry if entry != "candidate" else _entry_point(source),
        "setup": _LEETCODE,
    }


def _entry_point(source: str) -> str:
    """What ``candidate`` is: the argument of a final ``check(...)``."""
    found = re.findall(r"^check\((.+)\)\s*$", source, re.MULTILINE)
    if not found or found[-1] == "candidate":
        raise RowError("its tests call candidate and do not say what that is")
    return found[-1]


def _literal(node: ast.AST) -> Any:
    return json.loads(json.dumps(ast.literal_eval(node), allow_nan=False))


SOURCES: dict[str, Source] = {
    "hotpotqa": Source("hotpotqa/hotpot_qa", "distractor", "train", "CC BY-SA 4.0", _multihop),
    "2wikimultihopqa": Source("framolfese/2WikiMultihopQA", None, "train", "Apache-2.0", _multihop),
    "triviaqa": Source("mandarjoshi/trivia_qa", "rc.nocontext", "train", "see the data set's page", _trivia),
    "gsm8k": Source("openai/gsm8k", "main", "train", "MIT", _gsm8k),
    "mbpp": Source("google-research-datasets/mbpp", "full", "train", "CC BY 4.0", _mbpp),
    "humaneval": Source("openai/openai_humaneval", None, "test", "MIT", _humaneval),
    "open_agentrl": Source("y-ohtani/open_agentrl_grpo_2k", None, "train", "Apache-2.0", _agentrl),
}
