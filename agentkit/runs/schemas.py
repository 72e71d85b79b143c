"""What rows, manifests, prices and sweeps look like that others may have written, as JSON Schemas with words
of ours.

Leaves out how fields fit together (trajectory_files).
"""

import sys
from functools import cache, reduce
from typing import Any

import fastjsonschema

SPLITS = ("train", "validation", "test")
SECTIONS = ("recipe", "stages", "hashes", "versions", "git")  # of a run's manifest, each a mapping
NOTE_FIELDS, NOTE_LIMIT = ("task_id", "text", "at"), 20_000  # characters of each
_TEXT, _NUMBER, _WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_TOKEN = _WHOLE | {"minimum": 0}
_FLAG, _OBJECT = {"type": "boolean"}, {"type": "object"}
_TEXT_OR_NONE, _NUMBER_OR_NONE = {"type": ["string", "null"]}, {"type": ["number", "null"]}


def _list(items: dict, says: str = "", **bounds: Any) -> dict[str, Any]:
    """An array of these; ``says`` is told of the array and of each item that is wrong."""
    words = {"says": says} if says else {}
    return {"type": "array", "items": items | words, **bounds, **words}


def _row(others: bool = False, **fields: dict) -> dict[str, Any]:
    """An object with these fields, all of them, and no others unless said."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": others}


def _bounded(
    kind: dict, says: str = "{name} is {value}, which is no number", **bounds: Any
) -> dict[str, Any]:
    """A number with bounds, which NaN, neither below nor above anything, does not pass."""
    nan = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0}
    return kind | bounds | {"allOf": [{"not": nan, "says": says}]}


_MOST = sys.float_info.max
_FINITE, _FINITE_OR_NONE = (
    _bounded(kind, minimum=-_MOST, maximum=_MOST) for kind in (_NUMBER, _NUMBER_OR_NONE)
)
_RESULT = _row(name=_TEXT, arguments=_OBJECT, observation=_TEXT, ok=_FLAG, seconds=_FINITE, cached=_FLAG)
_SPAN = _list(_WHOLE, minItems=2, maxItems=2)
_TURN = _row(text=_TEXT, span=_SPAN, results=_list(_RESULT), seconds=_FINITE)
_EXAMPLE = '{"tool": "calculator", "arguments": {"expression": "1 + 1"}}'
_STEPS = f"meta['plan'] must be a list of steps such as {_EXAMPLE}"
_STEP = {name: part | {"says": _STEPS} for name, part in {"tool": _TEXT, "arguments": _OBJECT}.items()}
_STEP["expect"] = _TEXT_OR_NONE | {"says": "a step of meta['plan'] expects {value}: write it as text"}
_NAMES = {name: _list(_TEXT, f"meta['{name}'] must be a list of texts")
          for name in ("entities", "required_tools", "forbidden_tools")}  # fmt: skip
_META = _NAMES | {
    "plan": _list({"type": "object", "properties": _STEP, "required": ["tool", "arguments"]}, _STEPS)
}
_KIND = {"says": 'verifier must be text or an object with a "kind"'}
_TEXTS = ("id", "prompt", "answer", "family", "difficulty")
_MEASURED = _OBJECT | {"additionalProperties": _NUMBER}  # seconds, by policy
_CONTROLS = _OBJECT | {"additionalProperties": _OBJECT | {"properties": {"seconds": _NUMBER}}}
_STAGE = {"parameters": _OBJECT, "measured": _MEASURED, "seconds": _NUMBER, "devices": _NUMBER}
_STAGE |= {"controls": _CONTROLS, "files": _OBJECT}
_STAGES = _OBJECT | {"additionalProperties": _OBJECT | {"properties": _STAGE}}
_N_TASKS = "n_tasks is {value}; it must be a whole number of at least 20"
_MARGIN = "margin is {value}: write a share of success between 0 and 1, as 0.05"
_ARMS = "arms is no mapping, or an empty one: give each arm a name and the recipe keys it changes"
_CHANGES = {"type": ["object", "null"], "says": "arm {name} holds no recipe keys: write it as {beta: 0.0}"}
_GRID = "grid is empty: give recipe keys with values, as in beta: [0.0, 0.1]"
_VALUES = _list({}, minItems=1) | {"says": "grid holds no values for {name}: list them, as in [0.0, 0.1]"}
_SECONDS = dict.fromkeys(("rollout", "evaluation", "update", "demonstration", "other"), _NUMBER)
_RATES = _row(source=_TEXT, **_SECONDS)
_RATES["properties"] |= {"device": _TEXT, "task": _NUMBER}  # a GPU and 0, where they are not there
_SCHEMAS: dict[str, dict] = {
    "trajectory": _row(
        task_id=_TEXT,
        policy=_TEXT,
        sample=_WHOLE | {"minimum": 0},
        seed=_WHOLE,
        prompt_ids=_list(_TOKEN),
        completion_ids=_list(_TOKEN),
        action_mask=_list({"enum": [0, 1]}),
        old_logprobs=_list(_NUMBER),
        turns=_list(_TURN),
        stop_reason=_TEXT,
        answer=_TEXT_OR_NONE,
        success=_bounded(_NUMBER_OR_NONE, "success is no number", minimum=0, maximum=1),
        why=_TEXT,
        components=_OBJECT | {"additionalProperties": _FINITE_OR_NONE},
        reward=_FINITE_OR_NONE,
        advantage=_FINITE_OR_NONE,
        step={"type": ["integer", "null"]},
    ),
    "alarm": _row(
        step=_WHOLE,
        alarm=_TEXT,
        severity=_TEXT,
        value=_NUMBER_OR_NONE,
        evidence=_list(_TEXT),
        cause=_TEXT,
        advice=_TEXT,
    ),
    "preflight item": _row(True, light=_TEXT, name=_TEXT, finding=_TEXT, advice=_TEXT),
    "manifest": _OBJECT | {"properties": dict.fromkeys(SECTIONS, _OBJECT) | {"stages": _STAGES}},
    "note": _row(True, **dict.fromkeys(NOTE_FIELDS, _TEXT | {"maxLength": NOTE_LIMIT})),
    "suite": {
        "type": "object",
        "properties": {
            "n_tasks": _WHOLE | {"minimum": 20, "says": _N_TASKS},
            "seed": _WHOLE | {"says": "seed is {value}; it must be a whole number"},
        },
        "says": "the suite's spec is {value}; give an object such as {'families': ['A'], 'n_tasks': 100}",
    },
    "sweep file": {
        "type": "object",
        "properties": {
            "seeds": _list(
                _WHOLE, "seeds: list different whole numbers, as in [1, 2, 3]", minItems=1, uniqueItems=True
            ),
            "against": _TEXT | {"says": "against is {value}: name one arm"},
            "margin": _bounded(_NUMBER, _MARGIN, exclusiveMinimum=0, exclusiveMaximum=1) | {"says": _MARGIN},
            "stop_hopeless": _FLAG | {"says": "stop_hopeless is {value}: write true or false"},
            "arms": _OBJECT | {"minProperties": 1, "says": _ARMS, "additionalProperties": _CHANGES},
            "grid": _OBJECT | {"minProperties": 1, "says": _GRID, "additionalProperties": _VALUES},
        },
    },
    "prices": _row(
        currency=_TEXT,
        providers=_OBJECT | {"additionalProperties": _NUMBER},
        rates=_OBJECT | {"required": ["default"], "additionalProperties": _RATES},
    ),
    "sweep": _row(
        True,
        cells=_list(
            _row(True, arm=_TEXT, seed=_WHOLE, run=_TEXT, status=_TEXT, seconds=_NUMBER, error=_TEXT)
        ),
        arms=_OBJECT | {"additionalProperties": _row(True, policy=_TEXT)},
        order=_list(_TEXT),
        shared=_OBJECT | {"additionalProperties": _row(True, stages=_list(_TEXT, minItems=1), status=_TEXT)},
        file=_OBJECT,
        versions=_OBJECT,
        against=_TEXT,
        question=_TEXT,
        margin=_NUMBER,
    ),
    "metrics": {
        "type": "object",
        "properties": {"step": _WHOLE | {"minimum": 0, "maximum": 2**31}},
        "required": ["step"],
        "additionalProperties": _bounded(_NUMBER_OR_NONE, minimum=-1e300, maximum=1e300),
    },
    "task": {
        "type": "object",
        "properties": {
            **{name: _TEXT | {"says": f"{name} must be text"} for name in _TEXTS},
            "split": {
                "type": "string",
                "says": "split must be text",
                "allOf": [{"enum": SPLITS, "says": "split is {value}; it must be train, validation or test"}],
            },
            "verifier": {
                "type": ["string", "object"],
                "properties": {"kind": _TEXT | _KIND},
                "required": ["kind"],
                **_KIND,
            },
            "tools": _list(_TEXT, "tools must be a list of names"),
            "meta": {"type": "object", "properties": _META, "says": "meta must be an object"},
        },
    },
}


@cache
def _compiled(kind: str) -> Any:
    return fastjsonschema.compile(_SCHEMAS[kind], use_default=False)


def fault(kind: str, row: Any) -> str | None:
    """What is wrong with a value of one of the kinds, by place and value, or None."""
    try:
        _compiled(kind)(row)
    except fastjsonschema.JsonSchemaValueException as error:
        place, rule = error.name.removeprefix("data").lstrip("."), error.message.removeprefix(error.name)
        named = ascii(place)[1:-1]
        plain = f"{named:.80} is {error.value!a:.60}, and{rule:.80}" if place else f"it{rule:.200}"
        words = {"{value}": f"{error.value!a:.60}", "{name}": f"{place.rpartition('.')[2]!a:.60}"}
        return reduce(
            lambda said, word: said.replace(*word), words.items(), error.definition.get("says", plain)
        )
    return None
