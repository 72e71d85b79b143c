"""Family C: specifications give what their words say, and hidden tests tell them from near misses."""

import json
import random

import pytest

from agentkit import Suite, verify
from agentkit.sandbox import run_python
from agentkit.tasks import solve
from agentkit.tasks.families import code
from agentkit.tasks.families.specifications import BLOCKS
from agentkit.tools.environments import CodeEnvironment
from agentkit.trajectories import results_of

# worked out by hand: name, parameter, input, result
BLOCK_LITERALS = (
    ("above", 3, [1, 5, 3, 4], [5, 4]), ("below", 8, [9, 8, 7], [7]), ("even", None, [1, 2, 0, 3], [2, 0]),
    ("odd", None, [1, 2, 0, 3], [1, 3]), ("multiples", 3, [0, 3, 4, 9], [0, 3, 9]), ("without", 2, [2, 1, 2, 3], [1, 3]),
    ("step", 2, [5, 6, 7, 8, 9], [5, 7, 9]), ("first", 2, [5, 6, 7], [5, 6]), ("last", 2, [5, 6, 7], [6, 7]),
    ("drop", 2, [5, 6, 7], [7]), ("cut", 2, [5, 6, 7], [5]), ("rotate", 2, [5, 6, 7], [7, 5, 6]),
    ("unique", None, [3, 1, 3, 2, 1], [3, 1, 2]), ("ascending", None, [3, 1, 2], [1, 2, 3]),
    ("descending", None, [3, 1, 2], [3, 2, 1]), ("reverse", None, [3, 1, 2], [2, 1, 3]), ("add", 4, [1, 2], [5, 6]),
    ("times", 3, [1, 2], [3, 6]), ("divide", 2, [5, 4], [2, 2]), ("modulo", 3, [5, 3], [2, 0]),
    ("square", None, [3, 0], [9, 0]), ("digits", None, [19, 7], [10, 7]), ("cap", 8, [9, 8, 3], [8, 8, 3]),
    ("floor", 4, [3, 9], [4, 9]), ("differences", None, [1, 5, 3], [4, 2]), ("running", None, [1, 2, 3], [1, 3, 6]),
    ("rises", None, [3, 4, 4, 6], [4, 6]), ("scaled", None, [7, 8, 9], [0, 8, 18]), ("sum", None, [1, 2, 3], 6),
    ("count", None, [4, 4], 2), ("largest", None, [1, 3], 3), ("smallest", None, [4, 3], 3), ("spread", None, [4, 1, 9], 8),
    ("distinct", None, [1, 1, 2], 2), ("second", None, [5, 9, 7], 7), ("middle", None, [9, 1, 5], 5), ("item", 2, [5, 6, 7], 7),
    ("squares", None, [1, 2, 3], 14), ("count_above", 2, [1, 2, 3, 4], 2), ("where", None, [3, 9, 9], 1),
    ("ends", None, [3, 9, 4], 7), ("join", None, [3, 10], "3-10"), ("backwards", None, "ab c", "c ba"),
    ("upper", None, "aB", "AB"), ("title", None, "red cat", "Red Cat"), ("swap", None, "aB", "Ab"),
    ("consonants", None, "Orange", "rng"), ("vowels", None, "Orange", "Oae"), ("skip", 2, "abcde", "ace"),
    ("start", 3, "abcde", "abc"), ("end", 3, "abcde", "cde"), ("behead", 2, "abcde", "cde"), ("remove", "e", "eEee x", "E x"),
    ("star", "e", "tEeth", "tE*th"), ("double", None, "ab", "aabb"), ("repeat", 3, "ab", "ababab"),
    ("letters_sorted", None, "bca", "abc"), ("characters", None, "abcab", "abc"), ("shift", 2, "aYz", "cYb"),
    ("words_back", None, "a bc d", "d bc a"), ("flip", None, "ab cd", "ba dc"), ("words_sorted", None, "b a c", "a b c"),
    ("long", 3, "abc abcd", "abcd"), ("short", 4, "abc abcd", "abc"), ("hyphens", None, "a b", "a-b"),
    ("initials", None, "red big cat", "rbc"), ("length", None, "ab c", 4), ("word_count", None, "ab c", 2),
    ("vowel_count", None, "Orange", 3), ("letter_count", "e", "Eeel", 2), ("alphabet", None, "aab", 2),
    ("longest_word", None, "ab abc", 3), ("capitals", None, "AbC", 2), ("position", "e", "Ate", 2),
    ("word_lengths", None, "ab c", [2, 1]), ("plus", 3, 4, 7), ("product", 3, 4, 12), ("remainder", 5, 13, 3),
    ("quotient", 4, 11, 2), ("power", None, 7, 49), ("digit_sum", None, 49, 13), ("mirror", None, 120, 21),
    ("ones", None, 7, 3), ("divisors", None, 12, 6), ("triangle", None, 4, 10), ("multiples_sum", 3, 9, 9),
    ("primes", None, 10, 4), ("odd_squares", None, 4, 10), ("binary", None, 6, "110"), ("hex", None, 30, "1e"),
    ("digit_list", None, 305, [3, 0, 5]), ("divisor_list", None, 6, [1, 2, 3, 6]), ("up_to", None, 3, [1, 2, 3]),
    ("later", 10, "2023-12-25", "2024-01-04"), ("earlier", 10, "2024-03-05", "2024-02-24"),
    ("month_start", None, "2024-03-05", "2024-03-01"), ("year_end", None, "2024-03-05", "2024-12-31"),
    ("monday", None, "2024-02-29", "2024-02-26"), ("day", None, "2024-02-29", 29), ("month", None, "2024-02-29", 2),
    ("year_day", None, "2024-03-01", 61), ("days_left", None, "2023-12-30", 1), ("since", 1970, "1971-01-02", 366),
    ("age", 1960, "2000-06-30", 39), ("quarter", None, "2024-04-01", 2), ("weekday", None, "2024-02-29", "Thursday"),
)  # fmt: skip


@pytest.fixture(scope="module")
def drafted():
    rng = random.Random(0)
    return [t for t in (code.draft(None, rng) for _ in range(500)) if t is not None]


@pytest.fixture(scope="module")
def codes(corpus):
    return Suite.build({"families": ["C"], "n_tasks": 60, "seed": 2}, corpus=corpus)


def test_every_specification_gives_what_its_words_say():
    blocks = {b.name: b for b in BLOCKS}
    assert {name for name, *_ in BLOCK_LITERALS} == set(blocks) and len(blocks) == len(BLOCKS)
    for name, k, given, expected in BLOCK_LITERALS:
        steps = ((blocks[name], k),)
        assert (k is None) == (not blocks[name].values) == ("{k}" not in blocks[name].words)
        assert code.evaluate(steps, given) == code.run(code.source(steps), given) == expected, name


def test_prompts_are_short_and_show_one_example_that_no_hidden_test_repeats(drafted):
    assert len(drafted) > 150
    for task in drafted:
        assert len(task.prompt) < 420 and task.tools == ("python",) and task.meta["plan"]
        if task.verifier["kind"] == "code":
            tests = task.verifier["tests"]
            assert len(tests) >= code.TESTS
            assert not [args for args, _ in tests if f"f({args[0]!r}) is " in task.prompt]
            assert task.answer not in task.prompt and len({json.dumps(e) for _, e in tests}) > 1


def test_hidden_tests_tell_the_solution_from_its_near_misses(drafted):
    for task in drafted:
        if task.verifier["kind"] != "code":
            continue
        tests = task.verifier["tests"]
        inputs = [json.dumps(args[0]) for args, _ in tests]
        expected = [json.dumps(value) for _, value in tests]
        assert [code._result(task.answer, given) for given in inputs] == expected
        for wrong in task.meta["near_misses"]:
            assert [code._result(wrong, given) for given in inputs] != expected, task.prompt


def test_the_expert_solves_every_task_through_the_real_tool(codes, corpus):
    assert {t.difficulty for t in codes} == {"easy", "medium", "hard"}
    for task in list(codes)[::4]:
        solution = solve(task, CodeEnvironment())
        assert solution.answer == task.answer and verify(task, solution.answer).value == 1.0
        calls = results_of(solution)
        assert len(calls) == len(task.meta["plan"])
        for call in calls:
            printed = run_python(call.arguments["code"]).stdout.strip()
            assert call.name == "python" and printed == call.observation.strip()
