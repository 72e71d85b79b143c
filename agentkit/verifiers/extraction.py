"""Which part of a policy's last turn is its answer. Leaves out whether it is right (the other modules)."""

import json
import re
from typing import Any

MAX_ANSWER = 2_000  # characters; anything longer is no answer, except for code and verifiers of your own
MAX_CODE = 20_000
_EMOJI = "✅✔☑🎉😊🙂👍🎯🚀📈🎬🏆💡⭐🌟🥳📌📝🔥\ufe0f\u200d"  # that say nothing of an answer
_FOREIGN = (  # words for "answer"
    "(?:end|schluss)?antwort|réponse(?:[ ]finale)?|respuesta(?:[ ]final)?|risposta(?:[ ]finale)?"
    "|resposta(?:[ ]final)?|(?:eind)?antwoord|odpowiedź|ответ"
    "|(?:最终|最終)?答案|(?:最終的な)?答え|回答|정답|답"
)
_ANSWER_LINE = re.compile(
    rf"""^[ \t>*_#{_EMOJI}\U0001f300-\U0001f393]*(?:(?:final[ ]+)?answer
    |(?P<foreign>{_FOREIGN}))
    [ \t*_]*[:：][ \t*_]*(?P<said>[^\s*_].*)$""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_HEADING = re.compile(  # the answer stands below: "### Answer", "**Final answer:**"
    rf"""^[ \t>]*(?:[*_#]+[ \t]*(?:(?:final[ ]+)?answer|(?P<foreign>{_FOREIGN}))[ \t*_]*+[:：]?
    |(?:final[ ]+)?answer[ \t]*+[:：])
    [ \t*_#]*+\n(?=\s*\S)""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_CODE = re.compile(r"(?:async )?def \w+\(|class \w+\W|import \w|from [\w.]+ import |@\w")
_BOX, _PARAGRAPH = r"\boxed{", re.compile(r"\n\s*\n|\Z")
_EMPTY = re.compile(r"\W*+(?:final )?answer(?=\W*[*_])[\W_]*+", re.IGNORECASE)
_THOUGHT = re.compile(r"\A\s*<(think|thinking|thought)>(?:(?!<\1>).)*?</\1>", re.DOTALL)
_RETRACTED = re.compile(  # denies, doubts, contrasts or corrects; what else stands below an answer leaves it
    r"""(?<![\w-])(?:
      not|cannot|unlike|no|never|none|neither|nor|without|\w+n['’]t
    | but|yet|however|although|though|whereas|except|unless|instead|rather|otherwise|nevertheless|only[ ]if
    | doubt\w*|unsure|uncertain|unclear|perhaps|maybe|might|possibly|probably|guess\w*|suspect
    | wrong\w*|incorrect\w*|mistake\w*|correction|corrected|wait|actually|really
    | in[ ]fact|sorry|apolog\w+
    | retract\w*|mis(?:read|calculated|took|counted)|oops|hmm+|hold[ ]on|looking[ ]again|second[ ]thoughts?
    | alternatively|false|in[ ]truth|in[ ]reality
    | contradict\w*|disagree\w*|discard\w*|reject\w*|disregard\w*|withdraw\w*|revis\w+|ignore\w*
    | (?<!as[ ]it[ ])should|ha(?:s|ve|d)[ ]to[ ]be|comes[ ]out|turns[ ]out|asked[ ]for
    | on[ ]reflection|reconsider\w*|(?:update|change)[ ]after|my[ ]final
    | [ck]orre[ckt]\w*[ ]*:|nein|nicht|kein\w*|aber|allerdings|jedoch|sondern|stattdessen|eigentlich
    | vielleicht|falsch\w*
    | irrtum|korrektur
    | entschuldig\w+|non|ne|pas|mais|cependant|toutefois|pardon|désolé\w*|erreur|plutôt|tromp\w+|peut-être
    | pero|sin[ ]embargo|perdón|equivoqu\w+|sino|quizás?|però|tuttavia|scusa\w*|errat[oa]|sbagli\w+
    | aspett\w+|forse
    | não|porém|desculp\w+|engan\w+|errad[oa]|talvez|niet|geen|maar|helaas|не|нет|но|однако
    )(?![\w-])
    | ^[^\w\n]{0,20}or\b
    | ^[^\w\n]{0,20}(?:edit|update)\s*: | (?:^|[.!?]\s)[^\w\n]{0,20}i[ ](?:forgot|missed|overlooked)\b
    | [不错錯但]|更正|抱歉|其实|其實|应该|應該|ない|違|しかし|訂正|すみません|아니|하지만|틀렸|ошиб|неверн""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_CORRECTED = re.compile(  # what is said to be the correct one
    r"\bcorre(?:ct[eao]?|tt[oa]) (?:(?!(?:and|or|as|but|that|if)\b)\w+ )?"
    r"(?:is|was|should be|est|es|è|é)(?!\w)[\s*_$]*(?:indeed |the |an? )*(.*)",
    re.IGNORECASE,
)
FENCE = re.compile(r"```|^[ \t]*~~~", re.MULTILINE)
_BLOCK = re.compile(  # of code, closed
    r"^[ \t>]*(?P<fence>```|~~~)[ \t]*(?P<language>[^\n`~]*)\n(?P<inside>(?:(?!^[ \t>]*(?:```|~~~)).*\n)*+)"
    r"^[ \t>]*(?P=fence)[ \t]*$",
    re.MULTILINE,
)
_LANGUAGE = re.compile(r"(?:python3?|py|sql|bash|sh|javascript|js)\s*", re.IGNORECASE)
_ANSWER_KEY = re.compile(r"(?:final[ _])?answer", re.IGNORECASE)
_LEADING_KEY = re.compile(r"reasoning|thoughts?|steps|working|calculation|analysis|rationale", re.IGNORECASE)


def final_answer(text: str, limit: float = MAX_ANSWER) -> str | None:
    """The answer of a final turn: its last "Answer: ..." line, what is below such a heading, else all of it.

    None where that is empty or longer than ``limit`` (``answer_limit`` of the verifier); code, and reasoning
    that ends in a box, may have ``MAX_CODE`` characters. What follows the line, the heading's paragraph or
    that of the last box is no part of it, unless it denies, doubts or corrects: then all is. A turn that
    holds a code block is one answer as a whole: a comment in code may look like an answer line. Code that
    starts on the answer line goes on to the end. A closed thought in front is no part of it.
    """
    if len(text) > 100 * MAX_ANSWER:
        return None
    text = _THOUGHT.sub("", text, count=1)
    lines = list(_ANSWER_LINE.finditer(text))
    if FENCE.search(text):
        answer, limit = text.strip(), max(limit, MAX_CODE)
    elif starts := [line for line in lines if _CODE.match(line["said"])]:
        answer, limit = text[starts[0].start("said") :].strip(), max(limit, MAX_CODE)
    else:
        answer = _stated(text, lines)
        limit = max(limit, MAX_CODE) if _BOX in answer else limit
    return answer if 0 < len(answer) <= limit and not _EMPTY.fullmatch(answer) else None


def unwrapped(text: str) -> str | None:
    """The answer of a turn that is JSON ({"answer": 5}) or has code blocks; None for any other.

    For verifiers of answers in words and numbers: code and verifiers of your own are shown all of it.
    """
    blocks = list(_BLOCK.finditer(text))
    alone = len(blocks) == 1 and blocks[0][0].strip() == text.strip()
    inside = blocks[0]["inside"] if alone else text
    if inside.lstrip()[:1] == "{":
        return _of_json(inside)
    if alone:
        return final_answer(inside) if len(inside.split("\n")) == 2 and _ANSWER_LINE.match(inside) else None
    front = text[: blocks[-1].end()] if blocks else ""
    is_code = all(_LANGUAGE.fullmatch(block["language"]) and "=" in block["inside"] for block in blocks)
    prose = _BLOCK.sub("", front).strip()
    is_sign = prose and not re.search(r"\w", prose)
    if not front or not is_code or is_sign or _ANSWER_LINE.search(front) or _BOX in front:
        return None
    rest = text[len(front) :]
    return None if FENCE.search(rest) else final_answer(rest)


def _of_json(text: str) -> str | None:
    """What stands under "answer" at the end of a JSON object, behind other texts that lead up to it."""
    keys = []

    def strict(pairs: list[tuple[str, Any]]) -> dict:
        keys.extend(key for key, _ in pairs)
        return dict(pairs)

    try:
        value = json.loads(text[:MAX_CODE], object_pairs_hook=strict, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return None
    *leading, last = keys or [""]
    others = [value.get(key) for key in leading]
    is_sound = len(keys) == len(value) and all(map(_LEADING_KEY.fullmatch, leading))
    if not is_sound or not _ANSWER_KEY.fullmatch(last) or not all(map(_leads_up, others)):
        return None
    is_text = isinstance(value[last], str) and not re.search(r"[\x00-\x1f]", value[last])  # \nu is no \n
    return final_answer(value[last]) if is_text else None


def _leads_up(said: Any) -> bool:
    doubts = not isinstance(said, str) or _RETRACTED.search(said) or _BOX in said
    return not doubts and "answer" not in said.casefold()


def _stated(text: str, lines: list[re.Match]) -> str:
    """The answer on the last line, below the last heading or in the paragraph of the last box."""
    *_, heading = None, *_HEADING.finditer(text)
    if heading and (not lines or lines[-1].start() < heading.end()):
        text, lines = text[heading.end() :].strip(), []
    elif lines and _BOX in lines[-1]["said"]:
        text, lines = text[lines[-1].start("said") :], []
    if lines:
        start, end = lines[-1].span("said")
    elif heading or _BOX in text:
        start, end = 0, _PARAGRAPH.search(text, max(text.rfind(_BOX), 0)).start()
    else:
        return _without_emoji(text).strip()
    answer, below = _without_emoji(text[start:end]).strip(" \t\n*_"), text[end:]
    if answer.count("**") == 1:  # and no power
        answer = re.sub(r"(?<![\w)\]}])\*\*|\*\*(?![\w(\[{\\-])", "", answer)
    said = lines[-1] if lines else heading
    if said and said["foreign"] and below.strip(f"{_EMOJI} \t\n*_"):
        return text[start:].strip()  # whose denials _RETRACTED does not know
    introduced = re.search(r"\A#|:\Z", answer) or re.search(r"\banswer\b", below, re.IGNORECASE)
    others = not lines and (introduced or not all(map(_is_sentence, below.splitlines())))
    return text[start:].strip() if others or _is_retracted(answer, below) else answer


def _without_emoji(text: str) -> str:
    """A text without white space behind it, and without the emoji that stand there apart."""
    shorter = text.rstrip(_EMOJI + " \t\n")
    return shorter if text[len(shorter) : len(shorter) + 1].isspace() else text.rstrip()


def _is_sentence(text: str) -> bool:
    """Whether a line below an answer is none itself: it has several words, or none, and does not go on."""
    return len(text.split()) not in (1, 2, 3) and not re.match(r"\W*(?:or|and|boxed)\b", text, re.I)


def _is_retracted(answer: str, below: str) -> bool:
    """Whether what stands below an answer takes it back, or calls another one correct."""
    same = re.compile(
        rf"{re.escape(answer.rstrip('.'))}(?!\w|[.,]\d|\s*[-+*/^=])(?!.*\bnot\b)", re.IGNORECASE
    )
    others = (match[1] for match in _CORRECTED.finditer(below))
    return bool(_RETRACTED.search(below)) or not all(map(same.match, others))
