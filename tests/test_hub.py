"""Public data sets: rows become tasks whose gold answers pass; broken rows are named."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from agentkit import Lab, Suite, Trajectory, verify
from agentkit.records import DataError, StopReason, ToolResult, Turn
from agentkit.runs import RecipeError, read_recipe
from agentkit.tasks.audit import audit
from agentkit.tasks.public import hub
from agentkit.tools.runtime import tools_of

GIVEN = Path(__file__).with_name("dataset_rows.json").read_text(encoding="utf-8")  # a row of each schema
HOTPOT, TWOWIKI, TRIVIA, GSM8K, MBPP, MBPP_CLEAN, HUMANEVAL = json.loads(GIVEN)


def agentrl(source: str, truth: object, ability: str = "math", index: int = 0) -> dict:
    truth = truth if isinstance(truth, str) else json.dumps(truth)
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": f"Solve {source}."}]
    reward = {"style": "rule", "ground_truth": truth}
    return {"data_source": source, "prompt": prompt, "ability": ability, "reward_model": reward, "extra_info": {"index": index}}  # fmt: skip


AGENTRL = [
    agentrl("deepscaler", r"\frac{1}{2}"),
    agentrl("omni_math", "x^2+1"),
    agentrl("numina_math", "(1,2)"),
    agentrl("gpqa_science", "(B)"),
    agentrl("taco_code", {"inputs": ["3\n", "4\n"], "outputs": ["6\n", "8\n"]}, "code"),
    agentrl("taco_code", {"inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]], "fn_name": "add"}, "code", 1),
    agentrl("leetcode_code",
            "def check(candidate):\n    assert candidate(nums = [3,1], k = 2) == [1, 3]\n\ncheck(Solution().sort)", "code"),
]  # fmt: skip


def write(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def load_one(name: str, row: dict, tmp_path: Path):
    ((task,), broken) = hub.load(name, write(tmp_path / "rows.jsonl", row))
    return task


@pytest.mark.parametrize(("name", "row", "answer", "right", "wrong"), [
    ("hotpotqa", HOTPOT, "yes", ["Yes.", "yes"], ["no", "yes and no", ""]),
    ("2wikimultihopqa", TWOWIKI, "Małgorzata Braunek", ["małgorzata braunek"], ["Xawery Żuławski"]),
    ("triviaqa", TRIVIA, "La Paz", ["Nuestra Señora de La Paz", "la paz"], ["Sucre", "La Paz or Sucre"]),
    ("gsm8k", GSM8K, "1072", ["1072", "1,072"], ["72", "1072 or 72"]),
    ("gsm8k", GSM8K | {"answer": "x #### -70,000,000"}, "-70000000", ["-70,000,000"], ["70000000"]),
    ("gsm8k", GSM8K | {"answer": "x #### $1,000.5"}, "$1000.5", ["$1,000.5"], ["1000"]),
    ("mbpp", MBPP, None, [MBPP["code"]], ["def remove_Occ(s, ch): return s", "remove_Occ"]),
    ("mbpp", MBPP_CLEAN, None, ["def both(x, y): return [v for v in x if v in y]"], ["def both(a, b): return a"]),
    ("humaneval", HUMANEVAL, None, ["def decode_cyclic(s):\n    return s[-1] + s[:-1]"],
     ["def decode_cyclic(s): return s", HUMANEVAL["prompt"]]),
], ids=["hotpotqa", "2wiki", "triviaqa", "gsm8k", "millions", "dollars", "mbpp", "mbpp-sanitized", "humaneval"])  # fmt: skip
def test_a_row_of_each_schema_becomes_a_task(tmp_path, name, row, answer, right, wrong):
    task = load_one(name, row, tmp_path)
    assert answer is None or task.answer == answer
    assert task.family == name and task.meta["licence"] and task.id.startswith(name)
    assert [verify(task, text).value for text in (task.answer, *right)] == [1] * (1 + len(right))
    assert [verify(task, text).value for text in wrong] == [0] * len(wrong)
    assert [r for r in audit([task]) if not r["passed"]] == []


def test_the_calls_of_tests_written_as_source_become_tests_with_values(tmp_path):
    tests = ["assert f((1, 2)) == 3", "for n in (4, 5):\n    assert f([n]) == n"]
    row = MBPP | {"code": "def f(x):\n    return sum(x)", "test_list": tests, "test_setup_code": ""}
    task = load_one("mbpp", row, tmp_path)
    first = {"args": "[(1, 2)]", "kwargs": {}, "expected": 3}
    assert task.verifier["tests"] == [first, [[[4]], 4], [[[5]], 5]]
    assert verify(task, "def f(x): return x[0] * 3 if isinstance(x, tuple) else x[0]").value == 1
    for code in ("return 0", "return {sum(x)}", "raise ValueError", "x.clear()"):
        with pytest.raises(DataError, match="its code passes 0 of its 2 tests"):
            load_one("mbpp", row | {"code": f"def f(x): {code}"}, tmp_path)


def test_the_five_sources_of_open_agentrl(tmp_path):
    tasks = hub.load("open_agentrl", write(tmp_path / "train.jsonl", *AGENTRL))[0]
    right = ["0.5", "1+x^2", "(1,2)", "b", "print(2 * int(input()))", "def add(a, b): return a + b",
             "class Solution:\n    def sort(self, nums: List[int], k: int):\n        return sorted(nums)"]  # fmt: skip
    wrong = ["1/3", "x^2", "(2,1)", "c", "print(input())", "def add(a, b): return [a + b]", "class A: pass"]
    assert [verify(task, text).value for task, text in zip(tasks, right, strict=True)] == [1] * 7
    assert [verify(task, text).value for task, text in zip(tasks, wrong, strict=True)] == [0] * 7
    assert tasks[0].prompt == "Solve deepscaler." and "Solve" in tasks[4].prompt
    assert [r for r in audit(tasks) if not r["passed"]] == []  # code rows come without a reference solution


GOOD = {"hotpotqa": HOTPOT, "2wikimultihopqa": TWOWIKI, "triviaqa": TRIVIA, "gsm8k": GSM8K, "mbpp": MBPP,
        "humaneval": HUMANEVAL, "open_agentrl": AGENTRL[0]}  # fmt: skip
BROKEN = json.loads((Path(__file__).parent / "hostile" / "dataset_rows.json").read_text(encoding="utf-8"))
ROWS = [(case["dataset"], case["row"] if "row" in case else GOOD[case["dataset"]] | case["change"], case["says"])
        for case in BROKEN]  # fmt: skip
ROWS += [  # gold answers that can never pass
    *(("gsm8k", GSM8K | {"answer": f"x #### {gold}"}, "fails its own verifier") for gold in ("abc", "5 and 6", "nan", "1,5")),
    ("triviaqa", TRIVIA | {"question_id": "z", "answer": {"value": "the", "aliases": []}}, "fails its own verifier"),
    ("hotpotqa", HOTPOT | {"id": "z", "answer": "the"}, "empty once normalised"),
    ("open_agentrl", agentrl("leetcode_code", "assert f(1) == 1e999", "code", 9), "Out of range float"),
    ("open_agentrl", agentrl("leetcode_code", "assert f(**{'a': 1}) == 1", "code", 9), "a test other than"),
    ("open_agentrl", agentrl("leetcode_code", "assert candidate(1) == 1\n\ncheck(candidate)", "code", 9), "does not fit the schema"),
    ("open_agentrl", agentrl("leetcode_code", "assert f(1) == 1\n" * 5_000, "code", 9), "5000 tests; 1000 are allowed"),
    ("open_agentrl", agentrl("taco_code", {"inputs": [[1]], "outputs": [1], "fn_name": "f("}, "code", 9), "fn_name is"),
    ("open_agentrl", agentrl("taco_code", {"inputs": ["1"], "outputs": ["NaN"], "fn_name": "f"}, "code", 9), "Out of range"),
]  # fmt: skip


@pytest.mark.parametrize("name", hub.SOURCES)
def test_broken_rows_are_left_out_and_each_is_named(tmp_path, name):
    rows = [(row, says) for dataset, row, says in ROWS if dataset == name]
    path = write(tmp_path / "rows.jsonl", GOOD[name], *(row for row, _ in rows))
    tasks, broken = hub.load(name, path)
    assert len(tasks) == 1 and len(broken) == len(rows)
    for number, ((_, says), sentence) in enumerate(zip(rows, broken, strict=True), 2):
        assert re.match(rf"{path}, row {number}: .*({says})", sentence), sentence
        assert "\n" not in sentence and len(sentence) < 500
    with pytest.raises(DataError, match=r"no usable task \(\d+ broken rows\); .*row 1: "):
        hub.load(name, write(path, *(row for row, says in rows if says != "occurs twice")))


def test_the_required_tool_must_have_been_used(tmp_path):
    task = load_one("gsm8k", GSM8K, tmp_path)
    tried = Trajectory(task.id, "p", 0, 0, (), (), (), (), (), StopReason.ANSWER, answer="1072")
    for ok in (True, False):
        turn = Turn("", (0, 0), (ToolResult("calculator", {}, "72", ok),))
        assert verify(task, replace(tried, turns=(turn,))).value == float(ok)
    assert verify(task, tried).why == "did not use calculator, which the task requires"


def test_jsonl_json_parquet_and_folders_load_the_same(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [GSM8K, GSM8K | {"question": "Other?"}]
    write(tmp_path / "train.jsonl", *rows)
    (tmp_path / "a.json").write_text(json.dumps({"data": rows}), encoding="utf-8-sig")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    from_folder, _ = hub.load("gsm8k", tmp_path)
    assert len(from_folder) == 2 and (from_folder[0].difficulty, from_folder[0].split) == ("easy", "train")
    for name in ("train.jsonl", "a.json", "b.parquet"):
        assert hub.load("gsm8k", tmp_path / name) == (from_folder, [])
    assert len(hub.load("gsm8k", tmp_path, limit=1)[0]) == 1
    path = Suite(from_folder).save(tmp_path / "tasks.jsonl")
    assert list(Suite.load(path)) == from_folder


def test_a_hub_that_refuses_says_what_to_do(monkeypatch):
    import datasets

    def fails(*_, **__):
        raise RuntimeError("Dataset 'x' is a gated dataset on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    says = r"'x' is a gated .*go online .*accept its terms at https://huggingface.co/.*or pass the path of"
    with pytest.raises(DataError, match=says):
        hub.load("gsm8k")


def test_sixty_rows_are_a_suite_whose_environment_has_its_tools(tmp_path):
    """Each is about something that no other is about."""
    words = "amber beech cedar daisy elder fennel ginger hazel".split()
    names = [f"{a} {b} {c}" for a, b, c in itertools.permutations(words, 3)][::5]
    rows = [TWOWIKI | {"_id": name, "question": f"Where was {name} {name[::-1]} born?", "answer": "Paris",
                       "context": [[name, [f"{name} was born in Paris."]]], "supporting_facts": [[name, 0]]} for name in names[:60]]  # fmt: skip
    source = write(tmp_path / "train.jsonl", *rows, '{"broken": 1}')
    with pytest.warns(UserWarning, match="1 rows left out: .*row 61"):
        lab = Lab.open({"tasks": f"2wikimultihopqa:{source}"})
        suite = lab.suite()
    sizes = {split: len(suite.split(split)) for split in ("train", "validation", "test")}
    assert len(suite) == 60 and min(sizes.values()) >= 5 and sizes["train"] >= 35
    for task in suite:
        environment = lab.environments[task.family]()
        environment.reset(**task.meta)
        assert set(task.tools) == set(tools_of(environment))
        assert task.answer in environment.search(f"{task.prompt} born")


def test_rows_beside_a_recipe_are_found_from_anywhere(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "mine.yaml").write_text("tasks: gsm8k:rows.jsonl")
    assert read_recipe(tmp_path / "mine.yaml")["tasks"] == f"gsm8k:{tmp_path / 'rows.jsonl'}"
    with pytest.raises(RecipeError, match="there is no file 'gsm9k'"):
        Lab.open({"tasks": "gsm9k"}).suite()
