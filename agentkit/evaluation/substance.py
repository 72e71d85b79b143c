"""What a failed attempt came to in substance: the right answer in another form, no answer, or calls that
never parsed.

The lenient verifier beside the strict one, which stays the only judge of success. Leaves out what it cannot
know: whether words next to the right ones are another answer, so whatever is doubtful is wrong here too.
"""

import re

from agentkit.evaluation.evidence import TEXT_LIMIT, gave_up, stands
from agentkit.records import StopReason, Task, Trajectory
from agentkit.trajectories import failure_of, results_of, verifier_kind
from agentkit.verifiers import check, final_answer, normalize, parse_number, verify
from agentkit.verifiers.kinds import looks_at_calls

_CONTROL = re.compile(r"<\|[^|<>]{1,40}\|>|</?s>")
_CALL = re.compile(r"<\W{0,2}tool_call|<function=|\[TOOL_CALLS\]|[\"'](?:arguments|parameters)[\"']\s*:")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_HEDGE = re.compile(  # what takes a value back, offers another or makes another of it
    r"\b(?:or|either|neither|nor|not|never|cannot|no longer|wrong|incorrect|mistake\w*|false|fail\w*"
    r"|instead|but|however|except|maybe|perhaps|possibly|supposedly|allegedly|between|versus|vs|than"
    r"|twice|thrice|half|double|triple|squared?|cubed?|factorial|times|more|less|fewer|almost"
    r"|nearly|loss|plus|minus|first|hmm|wait|actually|while|whereas|although|though|unlike"
    r"|nicht|kein\w*|falsch|fast|oder|vielleicht|pas|faux|sauf|moitié|peut-être|ou|nunca|errad[oa]|falso|non|não"
    r"|sbagliat[oa]|mitad)\b|n[’']t\b|\?|[<>≠±√²³^]|\\sqrt|\\pm",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.,])[-−]?\d[\d,]{0,40}(?:\.\d{1,40})?(?:[eE][-+]?\d{1,3})?(?!\w*\d)")
_LISTED_BEFORE = re.compile(r"[\w.](?:\s*[,;/&|]|\s+and)\s*\W{0,3}$")
_PART_BEFORE = re.compile(  # what makes the number behind it an operand, a total, a time or a bound
    r"(?:[-−–+/×÷·]|(?<![\s*])\*+|\d\s*\*+|\*\s+|\d\s*:|\}\{|[\d)])[\s(]*$"
    r"|\bfrom\s+\S*\d.*$"
    r"|\b(?:out of|(?<!total )of|from|before|after|since|until|till|over|under|above|below|beyond|least|most"
    r"|von|vor|nach|seit|avant|après|antes|después)(?:\W+[^\W\d]+){0,2}\W*$",
    re.IGNORECASE,
)
_PART_BEHIND = re.compile(  # what scales it, counts with it or goes on with it
    r"[A-Za-z]\b|\s*(?:%|[kmbt]\b|bn\b|per ?cent|percent|hundred|thousand|million|billion|trillion|dozen"
    r"|(?:st|nd|rd|th|out of|of|bce?|mio|mrd|lakh|crore)\b|[*×÷+/(^:]\s*[\w(]|[-–]\s*[\w(])",
    re.IGNORECASE,
)
_WORD_BEFORE = re.compile(r"([\w’'.-]+)[\s(\"“*]*$")
_END = re.compile(r"[\s.,)\]”»]*(?:\([^()]*\)[\s.]*)?")
_LEADS = frozenset("the a an in at by on to it's it’s".split())  # may open a sentence with a capital
_TURNS = frozenset("of before after near outside like against".split())  # make another answer of a name
_PLAIN = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?|[^\W\d_]{2,}(?:[ '’-][^\W\d_]{2,})*")  # a number, or words
_FENCED = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_SOURCE = re.compile(r"^(?:def |class |import |from \w+ import ).*", re.MULTILINE | re.DOTALL)
_DEFINED = re.compile(r"^def (\w+)\(", re.MULTILINE)
SMALL = 3  # characters of words that stand in many sentences, such as no
ROUNDED = 0.01  # of the value: how far an answer may be rounded beyond what was asked


def unparsed(t: Trajectory) -> bool:
    """Whether no call made a malformed one good, or one stands where the answer should."""
    kinds = [failure_of(result) for result in results_of(t)]
    last = max((i for i, kind in enumerate(kinds) if kind == "malformed"), default=None)
    in_answer = bool(_CALL.search((t.answer or "")[:TEXT_LIMIT]))
    return in_answer or (last is not None and None not in kinds[last:])


def gave_up_on(t: Trajectory, task: Task) -> bool:
    """Whether it says that there is no answer, or gives none however it ended, an error excepted."""
    said = _last_said(t).strip()
    stated = final_answer(said) or ""  # all of it where no line says what the answer is
    answer = (t.answer or ("" if stated == said else stated)).strip()
    return gave_up(answer, task) if answer else t.stop_reason is not StopReason.ERROR


def _last_said(t: Trajectory) -> str:
    """The text of its last turn, where that called nothing."""
    return _CONTROL.sub("", t.turns[-1].text if t.turns and not t.turns[-1].results else "")[-TEXT_LIMIT:]


def right_in_substance(t: Trajectory, task: Task) -> float:
    """The lenient verdict on a trajectory, in [0, 1]: at least its success."""
    strict, kind = float(t.success or 0.0), verifier_kind(task)
    said = _last_said(t)
    answer = t.answer or final_answer(said) or ""
    if not answer.strip() or looks_at_calls(kind) or _CALL.search(answer):
        return strict
    if kind == "code":
        return max(strict, _program(answer, said, task))
    if task.meta.get("required_tools") or answer != t.answer:
        strict = max(strict, verify(task, answer).value or 0.0)
    golds = task.verifier.get("aliases", ())
    golds = [task.answer, *([golds] if isinstance(golds, str) else golds)]
    if kind == "exact" and task.verifier.get("rule", "words") != "words":
        own = (check("exact", answer, gold, question=task.prompt).value or 0.0 for gold in golds)
        strict = max(strict, *own)
    read = kind in ("exact", "numeric") or (kind == "symbolic" and _PLAIN.fullmatch(task.answer.strip()))
    if strict < 1 and read:
        strict = max(strict, float(any(states(answer[-TEXT_LIMIT:], gold) for gold in golds)))
    return strict


def _program(answer: str, said: str, task: Task) -> float:
    """The verdict on the last program in a turn, also under another name than was asked for."""
    text = said or answer
    blocks = _FENCED.findall(text) or [found[0] for found in [_SOURCE.search(text)] if found]
    if not blocks:
        return 0.0
    program, entry = blocks[-1].strip(), str(task.verifier.get("entry", ""))
    names = _DEFINED.findall(program)
    if names and entry.isidentifier() and entry not in names:
        program += f"\n\n{entry} = {names[-1]}\n"
    was_judged = program in (block.strip() for block in [answer, *_FENCED.findall(answer)[:1]])
    if was_judged and not task.meta.get("required_tools"):
        return 0.0
    return verify(task, program).value or 0.0


def states(text: str, gold: str) -> bool:
    """Whether the last sentence (with a number, for a number) holds this value, and no other beside it."""
    sentences = [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]
    number = parse_number(gold) if len(gold) < 100 else None
    if number is not None and abs(number) < 1e300:  # else no float
        last = next((s for s in reversed(sentences) if _NUMBER.search(s)), "")
        return bool(last) and not _HEDGE.search(last) and _ends_in(last, float(number), gold)
    last = sentences[-1] if sentences else ""
    return stands(gold, last) and not _HEDGE.search(last.replace(gold, "")) and _alone(last, gold)


def _ends_in(sentence: str, right: float, gold: str) -> bool:
    """Whether the last number of a sentence is this one, as exact as it is written, and in no list."""
    *_, last = _NUMBER.finditer(sentence)
    written = last[0].replace(",", "").replace("−", "-")
    decimals, asked = (len(text.partition(".")[2]) for text in (written, gold.strip()))
    given, before = float(written), sentence[: last.start()]
    if decimals > asked and "/" not in gold:  # a fraction has as many as one likes
        equal = given == right
    else:
        equal = abs(given - round(right, decimals)) < 1e-9 + 1e-12 * abs(right)
    near = abs(given - right) <= ROUNDED * abs(right)
    is_part = _PART_BEFORE.search(before) or _PART_BEHIND.match(sentence, last.end())
    return equal and near and not is_part and not _LISTED_BEFORE.search(before)


def _alone(sentence: str, gold: str) -> bool:
    """Whether the words of an answer end a sentence, or a parenthesis does, in no other name."""
    words = r"\W+".join(map(re.escape, re.findall(r"\w+", gold)))
    if re.search(r"[^\w\s.,'’()-]", gold) or gold.rstrip()[-1:] in "-'’":  # symbols say something
        words = re.escape(gold.strip())
    found = (
        list(re.finditer(rf"(?<!\w){words}(?![\w#+*!'\"′″’ʼ‐‑–—-])", sentence, re.IGNORECASE))
        if words
        else []
    )
    if not found:  # equal once accents are out
        return normalize(sentence) == normalize(gold)
    before, behind = sentence[: found[-1].start()], sentence[found[-1].end() :]
    if len(gold.strip()) <= SMALL and re.search(r"\w", before) and re.search(r"\w", behind):
        return False
    if not _END.fullmatch(behind) or before[-1:] in ("-", "'", "’", "‐", "‑"):
        return False
    word = found[1] if (found := _WORD_BEFORE.search(before)) else ""
    is_name = word[:1].isupper() and word.lower() not in _LEADS
    return not (is_name or word.lower() in _TURNS or _LISTED_BEFORE.search(before))
