"""Are the tasks what they are meant to be? Answers that are given away, a test that was trained on, gold
answers that the verifier cannot tell apart, and right answers in a format that nobody asked for.

No rollout of the expert is needed, so that tasks without a plan are looked at too. Leaves out what the audit
asks of every suite (tasks.audit).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from agentkit.preflight.checks import Groups
from agentkit.preflight.report import Item, gold_ids, ids
from agentkit.records import DataError, RecipeError, RunError, Task, Trajectory
from agentkit.runs import Recipe, find_file, read_rows
from agentkit.training.conversation import checked_messages, content_of
from agentkit.trajectories import members, needs_tools, plan_of, verifier_kind
from agentkit.verifiers import normalize, verify
from agentkit.verifiers.kinds import SHIPPED

MOST, FEW, NEARLY_ALL = 0.5, 0.05, 0.9  # shares of tasks
LOOKED = 200  # tasks that are asked about, at the most
LEAST = 4  # words, tasks or answers from which something can be said
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def given_away(tasks: Sequence[Task]) -> Item:
    """Whether gold answers stand in the questions, where tools are needed to find them."""
    asked = [task for task in tasks if needs_tools(task) and task.answer.strip()]
    told = [t for t in asked if f" {normalize(t.answer)} " in f" {normalize(t.prompt)} "]
    finding = f"The gold answer stands in the question of {len(told)} of {len(asked)} tasks that need tools."
    if len(told) <= MOST * len(asked) or len(told) < LEAST:
        return Item("Questions", "green", finding)
    shown = f"{told[0].prompt[:120]!r}"
    advice = f"Unless they are choices, take it out ({shown}): copying it is all there is to learn."
    return Item("Questions", "amber", finding, advice, tuple(task.id for task in told))


def answers(tasks: Sequence[Task]) -> Item:
    """Whether one question has several gold answers, or nearly all questions have one."""
    asked = defaultdict(dict)
    for task in tasks:
        words = " ".join(task.prompt.casefold().split()).rstrip("?.!: ")
        question = task.family, words, repr(_world(task))
        asked[question].setdefault(task.answer.strip(), task)
    several = [list(group.values()) for group in asked.values() if len(group) > 1]
    looked = evenly(several)
    odd = [own for own in looked if verify(own[0], own[1].answer).value != 1.0]
    number = round(len(odd) * len(several) / max(len(looked), 1))
    golds = Counter(task.answer.strip() for task in tasks if task.answer.strip())
    answer, times = golds.most_common(1)[0] if golds else ("", 0)
    finding = f"{number} of {len(asked)} questions have two gold answers; {len(golds)} answers differ."
    if number > FEW * len(asked):
        one, two, *_ = odd[0]
        advice = f"{one.prompt[:120]!r} has {one.answer[:60]!r} and {two.answer[:60]!r}: keep the true one."
        light = "red" if number > MOST * len(asked) else "amber"
        return Item("Gold answers", light, finding, advice, tuple(t.id for own in odd for t in own))
    if times > NEARLY_ALL * len(tasks) and len(asked) >= LEAST:
        advice = f"{answer[:60]!r} is right in {times} of {len(tasks)} tasks: balance the answers."
        return Item("Gold answers", "amber", finding, advice)
    return Item("Gold answers", "green", finding)


def unsaid(golden: Sequence[Trajectory]) -> Item:
    """Whether the expert begins otherwise where the prompt is the same: it knows what is not asked."""
    begun = defaultdict(list)
    for t in golden:
        begun[t.prompt_ids].append(t)
    alike = [own for own in begun.values() if len({t.turns[0].text for t in own if t.turns}) > 1]
    odd = [t for own in alike for t in own]
    finding = f"In {len(odd)} of {len(golden)} gold trajectories the expert knows what no prompt says."
    if len(odd) <= FEW * len(golden):
        return Item("Prompts", "green", finding)
    one, two, *_ = dict.fromkeys(t.turns[0].text[:120] for t in alike[0] if t.turns)
    advice = f"To one prompt it begins with {one!r} and with {two!r}: have the question say which is asked."
    light = "red" if len(odd) > MOST * len(golden) else "amber"
    return Item("Prompts", light, finding, advice, gold_ids(odd))


def held_out(train: Sequence[Task], test: Sequence[Task]) -> Item:
    """Whether test questions are training questions again: one gold answer, and one plan or all its words."""
    by_answer, test = defaultdict(list), evenly(test)
    for task in train:
        by_answer[task.answer].append((task, _words(task)))
    seen = [task for task in test if _asked_in(task, by_answer[task.answer])]
    finding = f"{len(seen)} of {len(test)} test tasks ask what a training task asks."
    if len(seen) <= FEW * len(test):
        return Item("Test and training", "green", finding)
    advice = f"Split the tasks again ({seen[0].prompt[:120]!r}): what is memorised would count as learnt."
    light = "red" if len(seen) > MOST * len(test) else "amber"
    return Item("Test and training", light, finding, advice, tuple(task.id for task in seen))


def imitated(recipe: Recipe, train: Sequence[Task], held: Sequence[Task]) -> Item | None:
    """Whether the cold start's transcripts ask what these held-out tasks ask: the same words, or all words of
    the one in the other with the gold answer in what is said. None where there are no transcripts to read.
    """
    if not (recipe.sft and recipe.transcripts and held):
        return None
    try:
        asked = list(_transcribed(read_rows(find_file(recipe.transcripts))))
    except (DataError, RecipeError, RunError):  # which notebook 02 has told
        return None
    whole, trained = {question for question, _ in asked}, {_words(task) for task in train}
    seen = []
    for task in held:
        words, gold = _words(task), frozenset(normalize(task.answer).split())
        parts = (said for q, said in asked if min(len(words), len(q)) >= LEAST and (words <= q or q <= words))
        is_asked = words in whole or any(gold <= said for said in parts)
        seen += [task] * (is_asked and words not in trained)  # else another world tells them apart
    finding = f"{len(seen)} of {len(held)} validation and test tasks are asked in the transcripts."
    if not seen:
        return Item("Test and transcripts", "green", finding)
    shown = f"{recipe.transcripts} ({seen[0].prompt[:120]!r})"
    advice = f"Take them out of {shown}: what is memorised would count as learnt."
    of, told = (Counter(task.split for task in tasks) for tasks in (held, seen))
    light = "red" if any(n > MOST * of[split] for split, n in told.items()) else "amber"
    return Item("Test and transcripts", light, finding, advice, tuple(task.id for task in seen))


def _transcribed(rows: Iterable[Mapping]) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """The words of each user message, with those of all that the assistant says."""
    for number, row in enumerate(rows, start=1):
        messages = checked_messages(row.get("messages"), f"row {number}")
        texts = [(m["role"], frozenset(normalize(content_of(m, Counter())).split())) for m in messages]
        said = frozenset().union(*(words for role, words in texts if role == "assistant"))
        yield from ((words, said) for role, words in texts if role == "user")


def evenly(tasks: Sequence[Task], n: int = LOOKED) -> list[Task]:
    """At most ``n`` tasks, evenly spread over the list, so that every family and difficulty has its share."""
    return [tasks[i * len(tasks) // n] for i in range(n)] if len(tasks) > n else list(tasks)


def _words(task: Task) -> frozenset[str]:
    return frozenset(normalize(task.prompt).split())


def _world(task: Task) -> dict:
    """What the environment is told besides: the same question in another world is another task."""
    return {name: value for name, value in task.meta.items() if name not in ("plan", "pass_rate", "band")}


def _asked_in(task: Task, others: Sequence[tuple[Task, frozenset[str]]]) -> bool:
    words, plan = _words(task), plan_of(task)
    for other, theirs in others:
        contained = min(len(words), len(theirs)) >= LEAST and (words <= theirs or theirs <= words)
        if (contained or (plan and plan == plan_of(other))) and _world(task) == _world(other):
            return True
    return False


def told_apart(tasks: Sequence[Task]) -> Item | None:
    """An item where a verifier takes what differs from gold in case, sign, point or order only; else None."""
    tasks = evenly(tasks)
    taken = list(_taken(tasks))
    looked = [task for task in tasks if verifier_kind(task) not in SHIPPED]
    if len({task.id for task, _ in taken}) <= FEW * len(looked):
        return None
    task, answer = taken[0]
    finding = (
        f"The verifier {verifier_kind(task)!r} takes {answer!r} for {task.answer!r}, and the like in "
        f"{len({t.id for t, _ in taken})} of {len(looked)} tasks."
    )
    advice = "These are different answers: compare without dropping case, signs, points or order."
    golds, blurred = {task.answer for task in looked}, {task.answer for task, _ in taken}
    labels = len(golds) <= len(looked) * MOST  # "Yes" and "yes" may well be one
    light = "red" if len(blurred) > MOST * len(golds) and not labels else "amber"
    return Item("Verifier", light, finding, advice, tuple(t.id for t, _ in taken))


def _taken(tasks: Sequence[Task]) -> Iterator[tuple[Task, str]]:
    """Tasks with wrong answers that a verifier of one's own takes: other tasks' golds, and other numbers."""
    alike = defaultdict(dict)
    for task in tasks:
        if verifier_kind(task) not in SHIPPED:
            alike[verifier_kind(task), _folded(task.answer)].setdefault(task.answer.strip(), task)
            if NUMBER.fullmatch(task.answer) and float(task.answer):
                wrong = task.answer.removeprefix("-") if task.answer[0] == "-" else f"-{task.answer}"
                wrong = wrong, task.answer.replace(".", ""), task.answer[::-1].rstrip("-")
                yield from ((task, w) for w in wrong if _takes(task, w))
    for group in alike.values():
        for task, other in pairwise(group.values()):
            yield from ((t, o.answer) for t, o in ((task, other), (other, task)) if _takes(t, o.answer))


def _takes(task: Task, answer: str) -> bool:
    numbers = [float(text) for text in (answer, task.answer) if NUMBER.fullmatch(text.strip())]
    equal = len(numbers) == 2 and numbers[0] == numbers[1]
    return not equal and verify(task, answer).value == 1.0


def refused_alike(groups: Groups, tasks: Mapping[str, Task]) -> Item:
    """Whether answers that say what the gold answer says are refused, for another format."""
    given = [t for t in members(groups) if t.answer and t.success is not None]
    alike = [t for t in given if _says(t.answer, tasks[t.task_id].answer)]
    refused = [t for t in alike if not t.success]
    finding = f"{len(refused)} of {len(alike)} answers that say what the gold answer says are refused."
    if len(refused) <= MOST * len(alike) or len(refused) < LEAST:
        return Item("Refused answers", "green", finding)
    answer, gold = refused[0].answer[:80], tasks[refused[0].task_id].answer[:80]
    advice = (
        f"The verifier refuses {answer!r} where the gold answer is {gold!r}: have the question ask for that "
        "format, or the verifier take both."
    )
    light = "amber" if any(t.success for t in given) else "red"
    return Item("Refused answers", light, finding, advice, ids(refused))


def _says(answer: str, gold: str) -> bool:
    """Whether two texts hold the same numbers, and the same words if both have any; or the same letters."""
    one, two = ([float(n) for n in NUMBER.findall(text.replace(",", ""))] for text in (answer, gold))
    words, others = (set(re.findall(r"[^\W\d_]+", text.casefold())) for text in (answer, gold))
    if one or two:  # a unit may stand on one side only
        return one == two and (not words or not others or words == others)
    return _folded(answer) == _folded(gold) != ""


def _folded(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))
