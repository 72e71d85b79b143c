"""The command line: one function a command. Its signature gives the flags, its docstring the help (tyro).

Each command imports what it needs when it runs, so that ``--help`` and ``doctor`` load neither torch nor
pandas. Leaves out what the commands do: each hands over to the room that knows.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from agentkit.recipe import Recipe, beside, located, parse_yaml
from agentkit.records import AgentkitError, DataError, RecipeError, RunError
from agentkit.runs import Run, encode_json, load_run, read_json, stages
from agentkit.runs.files import adapter_base


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Errors of the user's making are one sentence and exit status 2."""
    os.umask(0o077)  # run folders are private
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler stops a command as Ctrl-C does
    config, about = (tyro.conf.FlagCreatePairsOff,), "Reliable tool-using agents through GRPO."
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog="agentkit", description=about, args=arguments, config=config
            )
    except Exception as error:  # libraries have errors of their own for a full disk
        if not isinstance(error, AgentkitError | OSError) and "No space left" not in str(error):
            raise  # a fault of ours
        _tell(str(error))
        return 2
    except KeyboardInterrupt:
        _tell("stopped; what was finished is kept, and the same command goes on")
        return 130


def _warn(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Our own warnings, such as of a torn line, as one sentence too."""
    if category is UserWarning:
        _tell(str(message))


def _tell(sentence: str) -> None:
    print(f"agentkit: {' '.join(sentence.split())}", file=sys.stderr)


# ---- arguments that several commands share
RecipeFile = Annotated[Path, Positional, arg(metavar="RECIPE", help="a YAML file in params/")]
RunFolder = Annotated[Path, Positional, arg(metavar="RUN", help="the run folder, such as outputs/a")]
_CHANGE = "override a recipe key, such as -p seed=3"
_KEYS = "\n".join(f"{name}: {key.description}; {key.default!r}" for name, key in Recipe.keys().items())
Changes = Annotated[
    tuple[str, ...], UseAppendAction, arg(name="change", aliases=["-p"], metavar="KEY=VALUE", help=_CHANGE)
]
AllChanges = Annotated[
    tuple[str, ...],
    UseAppendAction,
    arg(name="change", aliases=["-p"], metavar="KEY=VALUE", help=f"{_CHANGE}. The keys:\n{_KEYS}"),
]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalRun = Annotated[Path | None, arg(metavar="RUN", help_behavior_hint="")]
OptionalCount = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
OptionalWord = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Json = Annotated[bool, arg(name="json", help="print the result as JSON", help_behavior_hint="")]


def _recipe(path: Path, changes: Sequence[str]) -> Recipe:
    return Recipe.load(path, **_overrides(changes))


def _overrides(pairs: Sequence[str]) -> dict[str, Any]:
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RecipeError(f"-p {pair[:80]}: write it as KEY=VALUE")
        try:
            values[key] = parse_yaml(value)
        except RecipeError as error:
            raise RecipeError(f"-p {pair[:80]}: {error}") from None
    return beside(Path("here"), values)


def _print(as_json: bool, value: Any, text: str, status: int = 0) -> int:
    """The result of a command, for programs or for people; returns the exit status."""
    print(encode_json(value, indent=1).decode().rstrip() if as_json else text)
    return status


def _texts(*tables: Any) -> str:
    return "\n\n".join(table.to_string(index=False, na_rep="") for table in tables)


# ---- a run
def new_command(
    name: Annotated[str, Positional, arg(metavar="NAME")], *, notebooks: bool = False, as_json: Json = False
) -> int:
    """Write params/NAME.yaml, NAME-real.yaml and labs/NAME.py: recipes and a lab file of your own, to run.

    Args:
        name: what these files are called
        notebooks: also copy the notebooks and recipes that ship into this folder
    """
    from agentkit.runs.labfile import new_lab

    recipe, real, lab = new_lab(name, notebooks)
    run = f"agentkit run {recipe} --run outputs/{name}"
    text = (
        f"{recipe}\n{real}\n{lab}\nthe first runs as it stands, and trains the small agent: {run}\n"
        f"with tools that it does not know rehearse with a stand-in: {run}-try -p model=scripted -p sft=false"
    )
    return _print(as_json, {"recipe": str(recipe), "real": str(real), "lab": str(lab)}, text)


def run_command(
    recipe: RecipeFile,
    *,
    run: Path,
    changes: AllChanges = (),
    first: Annotated[str | None, arg(name="from", metavar="NN", help_behavior_hint="")] = None,
    last: Annotated[str, arg(name="to", metavar="NN")] = "05",
    as_json: Json = False,
) -> int:
    """Notebooks 01 to 05 with a recipe, into a run folder; finished ones are kept.

    Args:
        run: the run folder, such as outputs/a
        first: execute from this notebook on, even if done
        last: stop after this notebook
    """
    from agentkit.lab import Lab

    lab = Lab.open(_recipe(recipe, changes))
    start = 0 if first is None else stages.stage_number(first)
    end = stages.stage_number(last)
    if start > end:
        raise RecipeError(f"--from {first} comes after --to {last}: nothing would run")
    if base := adapter_base(lab.recipe.model):
        _tell(f"{lab.recipe.model} is a LoRA adapter: it is folded into {base}, in float32, before all else")
    folder = Run.create(Run(run).path.resolve())
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        if not stages.run_stages(folder, lab.recipe.used(), start, end, anew=first is not None):
            raise KeyboardInterrupt
    if end < len(stages.STAGES) - 1:
        return _print(as_json, {"run": str(folder.path)}, f"run folder: {folder.path}")
    return _print_finished(folder, as_json)


def _print_finished(run: Run, as_json: bool) -> int:
    """The comparison of a finished run, once its card is written."""
    from agentkit.evaluation import Comparison
    from agentkit.views.card import write_report

    comparison = Comparison.from_json(run.comparison, run.file("comparison.json")).of_run(run)
    table, sentences = f"\n{comparison.table().to_string()}\n", comparison.sentences()
    lines = ["", *comparison.lead(), table, *sentences, f"\nrun folder: {run.path}"]
    text = "\n".join([*lines, f"run card: {write_report(run)}"])
    return _print(as_json, {"run": str(run.path), **run.comparison}, text)


def sweep_command(
    file: Annotated[Path, Positional, arg(metavar="FILE", help="a sweep file in params/sweeps/")],
    *,
    run: Path,
    slots: int = 1,
    address: OptionalWord = None,
    recipe: OptionalFile = None,
    dry_run: bool = False,
    as_json: Json = False,
) -> int:
    """Arms x seeds, each cell an ordinary run, then notebook 06; exit status 1 if a cell failed.

    Args:
        run: the sweep's folder, such as outputs/sweep-a
        slots: cells at once, more than one by Ray; a cell takes a GPU for each process
        address: of a Ray cluster whose machines share the folder
        recipe: another recipe than the one that the file names
        dry_run: print what would be made, its hours and its cost
    """
    from agentkit.evaluation.sweeps import Ablation
    from agentkit.preflight import sweeps
    from agentkit.runs.slots import dealt
    from agentkit.runs.sweep import Driver, Sweep, read_design

    design, sweep = read_design(file, recipe), Sweep(run)
    sweeps.check(design)
    if dry_run:
        plan = sweeps.dry_run(design, sweep)
        return _print(as_json, plan, sweeps.as_text(plan))
    say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    with dealt(slots, address, [arm.recipe for arm in design.arms.values()]) as deal:
        whole = Driver(design, sweep, deal, say).run()
    Ablation(sweep)  # raises where there is nothing to compare yet
    return max(_compare_arms(Run(sweep.folder), as_json), int(not whole))


def _compare_arms(run: Run, as_json: bool) -> int:
    """Notebook 06 of a sweep, and what it answers."""
    from agentkit.views.static import write_page

    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        stages.execute("06_ablations", run, {})
    result, page = read_json(run.file("ablations.json")), write_page(run.file("06_ablations.ipynb"))
    return _print(as_json, {"run": str(run.path), **result}, f"{result['answer']}\npage: {page}")


def preflight_command(
    recipe: RecipeFile, *, run: OptionalRun = None, changes: Changes = (), as_json: Json = False
) -> int:
    """Is a run worth starting? Some rollouts tell; exit status 1 if not.

    Args:
        run: a run whose tasks and cold start are used
    """
    from agentkit.lab import Lab
    from agentkit.preflight.examination import before_training

    values, folder = _recipe(recipe, changes), load_run(run) if run else None
    if values.sft and not (folder and folder.file("sft").exists()):
        _tell(
            "the recipe says sft: true, and this judges the model before that cold start: make it with "
            f"'agentkit run {recipe} --run {run or 'outputs/a'} --to 02', then add --run {run or 'outputs/a'}"
        )
    report = before_training(Lab.open(values), folder, _tell)
    return _print(as_json, dataclasses.asdict(report), report.text(), 1 if report.causes else 0)


def cost_command(
    recipe: RecipeFile,
    *,
    run: OptionalRun = None,
    prices: OptionalFile = None,
    changes: Changes = (),
    as_json: Json = False,
) -> int:
    """Device-hours and money by phase, and memory, before any is spent; beside what a run took.

    Args:
        run: a run of this recipe
        prices: a file of prices and rates; by default params/prices.yaml
    """
    from agentkit.runs import cost
    from agentkit.training import memory

    values, listed = _recipe(recipe, changes), cost.read_prices(prices)
    if not values.can_train:
        raise RecipeError("model: scripted costs nothing: name the model to be trained, as in -p model=nano")
    rates, spent = listed.rates_of(values), cost.actual(load_run(run)) if run else None
    seconds = cost.planned(values, listed)
    total = {name: sum(phases.values()) for name, phases in seconds.items()}
    try:
        planned, why = memory.table(memory.plan(values)), ""
    except RecipeError as error:
        planned, why = None, str(error)
    columns = seconds if spent is None else seconds | {"taken": spent}
    tables = [cost.table(columns, listed, rates.device), *([] if planned is None else [planned])]
    value = {
        "device_seconds": seconds["planned"],
        "range_seconds": [total["at least"], total["at most"]],
        "taken": spent,
        "rates": dataclasses.asdict(rates),
        "currency": listed.currency,
        "money": {name: total["planned"] / 3600 * price for name, price in listed.providers.items()}
        if rates.device == "GPU"
        else {},
        "memory": [] if planned is None else planned.to_dict("records"),
    }
    told = "\n".join([f"{recipe}; rates: {rates.source}\n", _texts(*tables), *filter(None, [why])])
    return _print(as_json, value, told)


def report_command(run: RunFolder, *, out: OptionalFile = None, as_json: Json = False) -> int:
    """A run's card, and its notebooks as pages beside it: HTML that opens offline, secrets masked.

    Args:
        out: where the card goes; by default report.html in the run
    """
    from agentkit.views.card import write_report

    path = write_report(load_run(run), located(out) if out else None)
    size = path.stat().st_size
    return _print(as_json, {"path": str(path), "bytes": size}, f"{path} ({size / 1e6:.1f} MB)")


def alarms_command(
    run: Annotated[Path, Positional, arg(metavar="RUN")],
    *,
    column: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="OURS=THEIRS")] = (),
    as_json: Json = False,
) -> int:
    """What went wrong in a training: a run here, or a log of TRL.

    Args:
        run: the run folder, such as outputs/a, or a log of TRL: trainer_state.json, JSON, JSONL or CSV
        column: what a log calls one of our columns, such as success=acc/mean
    """
    from agentkit.diagnostics import RULES, coverage, lacks, observe, scan, trained_steps
    from agentkit.runs.logs import read_log

    run, own = located(run), ()
    if run.is_file():
        if wrong := [pair for pair in column if "=" not in pair]:
            raise RunError(f"--column {wrong[0]}: write it as OURS=THEIRS, such as success=acc/mean")
        rows, unknown = read_log(run, dict(pair.split("=", 1) for pair in column))
        steps = [observe(row) for row in rows]
    elif column:
        raise RunError(f"--column is for a log made elsewhere; {run} is a folder.")
    else:
        steps, unknown = trained_steps(found := load_run(run)), []
        if found.manifest["recipe"].get("lab"):
            from agentkit.lab import Lab

            try:
                own = Lab.of(found).own_alarms
            except AgentkitError as error:  # such as a lab file that is gone
                _tell(f"the alarms of its lab file are left out: {error}")
    alarms = scan(steps, own)
    lines = _by_fault(alarms)
    count = f"{len(alarms) or 'no'} alarm{'s' * (len(alarms) > 1)}"
    count += " could look" * (len(lacks(steps)) == len(RULES))
    text = "\n".join([*lines, f"{count} {coverage(steps)}"])
    if unknown:
        text += f"\ncolumns that no alarm knows: {', '.join(unknown)}"
    listed: Any = [dataclasses.asdict(alarm) for alarm in alarms]
    if run.is_file():  # of a log an empty list alone would say that all is well
        listed = {"alarms": listed, "coverage": coverage(steps), "unknown": unknown}
    return _print(as_json, listed, text)


def _by_fault(alarms: Sequence[Any]) -> list[str]:
    """Each fault's first alarm in words, in the order of their steps, and how often it came again."""
    faults: dict[tuple, list[Any]] = {}
    for alarm in alarms:  # the advice names the component and the form
        faults.setdefault((alarm.alarm, alarm.severity, alarm.advice), []).append(alarm)
    lines = []
    for first, *more in faults.values():
        said = [f"step {first.step}, {first.severity}: {first.alarm}", first.cause, f"-> {first.advice}"]
        said += [", ".join(first.evidence[:4])] * bool(first.evidence)
        said += [f"again at step {more[0].step}"] if len(more) == 1 else []
        said += [f"again {len(more)} times, the last at step {more[-1].step}"] if len(more) > 1 else []
        lines.append("\n  ".join(said))
    return lines


def merge_command(
    run: RunFolder,
    *,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        arg(metavar="{float32,float16,bfloat16}", help_behavior_hint=""),
    ] = None,
    unmerged: bool = False,
    as_json: Json = False,
) -> int:
    """Fold a run's adapter into a full model in merged/, and check it.

    Args:
        dtype: by default that of the model it was trained on
        unmerged: leave the adapter as it is, in merged/adapter beside the model
    """
    from agentkit.training.merge import merge

    merged = merge(load_run(run), dtype, unmerged)
    text = (
        "{path} ({dtype}); over {tokens} sampled tokens its log-probabilities differ from the adapter's by "
        "{mean_difference:.2g} nats on average, {max_difference:.2g} at most; the adapter itself moved them "
        "by {adapter_effect:.2g} on average, and {surviving:.1%} of that survives"
    )
    return _print(as_json, merged, text.format(**merged))


# ---- tasks
def audit_command(
    suite: Annotated[Path, Positional, arg(metavar="SUITE")],
    *,
    lab: OptionalFile = None,
    as_json: Json = False,
) -> int:
    """Does every verifier tell right from wrong? Exit status 1 if not.

    Args:
        suite: a tasks.jsonl, or the run folder that holds one
        lab: the lab file with its verifiers and families; by default the run's
    """
    from agentkit.lab import Lab
    from agentkit.tasks import Suite
    from agentkit.tasks.expert import wrong_plans

    tasks = Suite.load(suite := located(suite)).tasks
    run = (suite if suite.is_dir() else suite.parent).resolve()
    is_run = not lab and (run / "run.json").exists()
    opened = Lab.of(load_run(run)) if is_run else Lab.open({"lab": str(located(lab))} if lab else {})
    tasks = Suite(tasks, opened.environments)
    rows = tasks.audit() + wrong_plans(tasks, opened.environments)
    status = 0 if all(row["passed"] for row in rows) else 1
    return _print(as_json, {"tasks": len(tasks), "rows": rows}, _audit_text(rows, len(tasks)), status)


def _audit_text(rows: list[dict[str, Any]], tasks: int) -> str:
    import pandas as pd

    passed = pd.DataFrame([row for row in rows if row["passed"]]).dropna(axis=1, how="all")
    failures = [row for row in rows if not row["passed"]]
    columns = ("check", "task", "verifier", "value", "answer", "why")
    failed = pd.DataFrame([{name: str(row[name])[:60] for name in columns} for row in failures[:50]])
    failing = len({row["task"] for row in failures})
    verdict = f"{tasks} tasks, {failing} of them fail a check ({len(failures)} failures)"
    return "\n\n".join([_texts(passed, *([failed] if failures else [])), verdict])


def gaia_command(
    run: RunFolder,
    *,
    file: OptionalFile = None,
    policies: Annotated[str, arg(metavar="NAMES")] = "sft,grpo",
    levels: Annotated[str, arg(metavar="LEVELS")] = "1,2,3",
    limit: OptionalCount = None,
    as_json: Json = False,
) -> int:
    """A run's agents on GAIA, by level; gaia.json holds ids and scores only.

    Args:
        file: a folder with GAIA's files; by default it is loaded from the hub, which needs its terms accepted
        policies: what is measured, the baseline first: base, sft, grpo or a control
        levels: levels of difficulty
        limit: measure at most that many tasks
    """
    from agentkit.lab import Lab
    from agentkit.training.jobs import gaia

    folder, wanted = load_run(run), [word.strip() for word in levels.split(",")]
    if not set(wanted) <= {"1", "2", "3"}:
        raise DataError(f"--levels {levels[:40]!r}: use 1, 2 and 3, with commas")
    options = {"policies": [name.strip() for name in policies.split(",")], "levels": list(map(int, wanted))}
    comparison = gaia(Lab.of(folder), folder, file or "hub", limit=limit, **options)
    table = comparison.table().to_string()
    lines = [*comparison.lead(), f"{table}\n", *comparison.sentences()]
    text = "\n".join([*lines, str(folder.file("gaia.json"))])
    return _print(as_json, read_json(folder.file("gaia.json")), text)


# ---- the machine
def doctor_command(
    *,
    recipe: OptionalFile = None,
    gpus: OptionalCount = None,
    memory: float = 80.0,
    run: OptionalRun = None,
    changes: Changes = (),
    as_json: Json = False,
) -> int:
    """What this machine has: sandbox, engines, GPUs and who would use them; what each gap costs.

    Args:
        recipe: whose processes the GPUs are dealt to
        gpus: plan the recipe for so many, which need not be here
        memory: of each of them, in GB
        run: one line of JSON about this run and this machine, to send back
    """
    from agentkit import doctor

    if run:
        print(encode_json(doctor.of_run(load_run(run))).decode().strip())
        return 0
    if gpus is not None:
        if recipe is None:
            raise RecipeError("--gpus plans a recipe: add --recipe params/qwen3-4b.yaml")
        planned = doctor.plan(_recipe(recipe, changes), gpus, memory)
        return _print(as_json, planned, doctor.plan_text(planned))
    findings = doctor.examine(_recipe(recipe, changes) if recipe else None)
    return _print(as_json, findings, doctor.as_text(findings))


def serve_command(
    model: Annotated[str, Positional, arg(metavar="MODEL")],
    *,
    merge: Annotated[tuple[Path, ...], UseAppendAction, arg(metavar="ADAPTER")] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    lora_rank: int = 0,
    max_length: OptionalCount = None,
    memory: float = 0.9,
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    tensor_parallel: int = 1,
) -> None:
    """A vLLM server for recipes with engine: server; one replica a port, on the GPUs of CUDA_VISIBLE_DEVICES.

    Args:
        model: nano, a model folder or a hub name
        merge: merge an adapter folder in
        host: where it listens; keep it private, for whoever reaches the server can change its weights
        port: the port it listens on
        lora_rank: the largest rank of the adapters that a training hands over; the recipe's lora_r
        max_length: prompt and completion tokens at most
        memory: share of the GPU's memory
        precision: of the weights, as in the recipe
        tensor_parallel: cards that the model is spread over
    """
    from agentkit.policies.serve import serve_command as command_of
    from agentkit.policies.serve import served

    limits = {"max_lora_rank": lora_rank, "max_length": max_length, "memory_share": memory}
    options = limits | {"precision": precision, "tensor_parallel": tensor_parallel}
    command, environment = command_of(model, served(port), merge=list(merge), host=host, port=port, **options)
    os.execve(command[0], command, environment)


_ORDER = (
    new_command, run_command, sweep_command, preflight_command, cost_command,
    report_command, alarms_command, merge_command, audit_command,
    gaia_command, doctor_command, serve_command,
)  # fmt: skip
COMMANDS = {command.__name__.removesuffix("_command"): command for command in _ORDER}

if __name__ == "__main__":
    sys.exit(main())
