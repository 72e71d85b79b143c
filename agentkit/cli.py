"""The command line: one function a command. Its signature gives the flags, its docstring the help (tyro).

Each command imports what it needs when it runs, so that ``--help`` and ``doctor`` load neither torch nor
pandas. Leaves out what the commands do: each hands over to the room that knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml
from tyro.conf import Positional, UseAppendAction, arg

from agentkit.records import AgentkitError, DataError, RecipeError, RunError
from agentkit.runs import Run, encode_json, load_run, project_root, stages, write_bytes, write_json
from agentkit.runs.recipe import REWARDS, Recipe, read_recipe


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Errors of the user's making are one sentence and exit status 2."""
    os.umask(0o077)  # run folders are private
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # models write what a terminal cannot show
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="agentkit",
                description="Reliable tool-using agents through GRPO.",
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except (AgentkitError, OSError) as error:  # the user's or the machine's, not ours
        print(f"agentkit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("agentkit: stopped; what was finished is kept, run the same command to go on", file=sys.stderr)
        return 130


def _warn(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Our own warnings, such as of a torn line, as one sentence too."""
    if category is UserWarning:
        print(f"agentkit: {' '.join(str(message).split())}", file=sys.stderr)


# ---- arguments that several commands share
def _count(words: list[str]) -> int:
    if not words[0].isdecimal() or not 1 <= int(words[0]) <= 100_000:
        raise ValueError(f"{words[0][:20]!r} is not a whole number from 1 to 100000")
    return int(words[0])


_COUNT = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="N",
    instance_from_str=_count,
    is_instance=lambda value: True,
    str_from_instance=lambda n: [str(n)],
)
Count = Annotated[int, _COUNT]
RecipeFile = Annotated[Path, Positional, arg(metavar="RECIPE", help="a YAML file in params/")]
RunFolder = Annotated[Path, Positional, arg(metavar="RUN", help="the run folder, such as outputs/a")]
Changes = Annotated[
    tuple[str, ...],
    UseAppendAction,
    arg(name="change", aliases=["-p"], metavar="KEY=VALUE", help="override a recipe key"),
]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalRun = Annotated[Path | None, arg(metavar="RUN", help_behavior_hint="")]
OptionalCount = Annotated[Count | None, arg(metavar="N", help_behavior_hint="")]
OptionalWord = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Json = Annotated[bool, arg(name="json", help="print the result as JSON", help_behavior_hint="")]


def _recipe(path: Path, changes: Sequence[str]) -> Recipe:
    return Recipe.from_mapping(read_recipe(path) | _overrides(changes))


def _overrides(pairs: Sequence[str]) -> dict[str, Any]:
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RecipeError(f"-p {pair[:80]}: write it as KEY=VALUE")
        try:
            values[key] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise RecipeError(f"-p {pair[:80]}: {value[:60]!r} is not a YAML value") from None
    return values


def _print(as_json: bool, value: Any, text: str, status: int = 0) -> int:
    """The result of a command, for programs or for people; returns the exit status."""
    print(encode_json(value, indent=1).decode().rstrip() if as_json else text)
    return status


def _texts(*tables: Any) -> str:
    return "\n\n".join(table.to_string(index=False, na_rep="") for table in tables)


# ---- a run
def new_command(name: Annotated[str, Positional, arg(metavar="NAME")], *, as_json: Json = False) -> int:
    """Write params/NAME.yaml and params/NAME.py: a recipe and a lab file of your own, ready to run.

    Args:
        name: of both files
    """
    from agentkit.runs.new import new_lab

    recipe, lab = new_lab(name)
    text = f"{recipe}\n{lab}\nthey run as they stand: agentkit run {recipe} --run outputs/{name}"
    return _print(as_json, {"recipe": str(recipe), "lab": str(lab)}, text)


def run_command(
    recipe: RecipeFile,
    *,
    run: Path,
    changes: Changes = (),
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
    if ".." in run.parts:
        raise RunError(f"run folder {str(run)[:80]!r} is refused: write it without '..'")
    folder = Run.create(Run(run).path.resolve())
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        stages.run_stages(folder, lab.recipe.used(), start, end, lab=lab.digest, anew=first is not None)
    if end < len(stages.STAGES) - 1:
        return _print(as_json, {"run": str(folder.path)}, f"run folder: {folder.path}")
    return _print_finished(folder, as_json)


def _print_finished(run: Run, as_json: bool) -> int:
    """The comparison of a finished run, once its card is written."""
    from agentkit.evaluation import Comparison
    from agentkit.views.card import write_report

    comparison = Comparison.from_json(run.comparison, run.file("comparison.json"))
    lines = [f"\n{comparison.table().to_string()}\n", *comparison.sentences(), f"\nrun folder: {run.path}"]
    text = "\n".join([*lines, f"run card: {write_report(run)}"])
    return _print(as_json, {"run": str(run.path), **run.comparison}, text)


def preflight_command(
    recipe: RecipeFile, *, run: OptionalRun = None, changes: Changes = (), as_json: Json = False
) -> int:
    """Is a run worth starting? From some rollouts; exit status 1 where not.

    Args:
        run: a run whose tasks and cold start are used
    """
    from agentkit.lab import Lab
    from agentkit.policies.loading import load_agent, make_policy
    from agentkit.preflight import examine

    values, folder = _recipe(recipe, changes), load_run(run) if run else None
    lab = Lab.open(values)
    suite = lab.load(folder) if folder else lab.suite()
    cold_start = [folder.file("sft")] if folder and values.sft and folder.file("sft").exists() else []
    model, tokenizer = load_agent(values.model, merge=cold_start)
    policy = make_policy(model, tokenizer, "sft", values)
    n_test, progress = len(suite.split("test")), sys.stderr.isatty()
    report, _ = examine(lab, policy, lab.train_tasks(suite), model=model, n_test=n_test, progress=progress)
    return _print(as_json, dataclasses.asdict(report), report.text(), 1 if report.causes else 0)


def cost_command(
    recipe: RecipeFile,
    *,
    run: OptionalRun = None,
    gpus: Count = 4,
    prices: OptionalFile = None,
    changes: Changes = (),
    as_json: Json = False,
) -> int:
    """GPU-hours, wall clock and money, before any is spent.

    Args:
        run: a run to measure the rates on, and to compare the forecast with
        gpus: GPUs to spread the phases over
        prices: by default params/prices.yaml
    """
    from agentkit.runs import cost

    values, listed = _recipe(recipe, changes), cost.read_prices(prices)
    rates, compared = listed.rates_of(values.model), []
    if run is not None:
        folder = load_run(run)
        rates = cost.measured_rates(folder)
        compared = [cost.against_table(folder, listed)]
    seconds = cost.forecast(values, rates)
    tables = [*compared, cost.phase_table(seconds, gpus), cost.money_table(seconds, listed)]
    money = {name: sum(seconds.values()) / 3600 * price for name, price in listed.providers.items()}
    value = {
        "device_seconds": seconds,
        "rates": dataclasses.asdict(rates),
        "currency": listed.currency,
        "money": money,
    }
    return _print(as_json, value, f"{recipe}; rates: {rates.source}\n\n{_texts(*tables)}")


def report_command(run: RunFolder, *, out: OptionalFile = None, as_json: Json = False) -> int:
    """A run's card: one HTML file that opens offline, secrets masked.

    Args:
        out: by default report.html in the run
    """
    from agentkit.views.card import write_report

    path = write_report(load_run(run), out)
    size = path.stat().st_size
    return _print(as_json, {"path": str(path), "bytes": size}, f"{path} ({size / 1e6:.1f} MB)")


def alarms_command(
    run: Annotated[Path | None, Positional, arg(metavar="RUN", help_behavior_hint="")] = None,
    *,
    measure: OptionalCount = None,
    as_json: Json = False,
) -> int:
    """What went wrong in a training; or how often the alarms are right.

    Args:
        run: the run folder, such as outputs/a
        measure: instead, simulate N runs of each fault and 3 N healthy ones
    """
    if (run is None) == (measure is None):
        raise RunError("name a run folder, or say --measure N: one of the two")
    if measure:
        from agentkit.bench.alarms import measured

        table = measured(measure, 3 * measure, progress=sys.stderr.isatty()).round(2)
        return _print(as_json, table.to_dict("records"), _texts(table))
    from agentkit.diagnostics import stored_alarms

    alarms = stored_alarms(load_run(run))
    lines = [
        f"step {a.step}, {a.severity}: {a.alarm}\n  {a.cause}\n  -> {a.advice}\n  {', '.join(a.evidence[:4])}"
        for a in alarms
    ]
    text = "\n".join([*lines, f"{len(alarms)} alarm{'s' * (len(alarms) != 1)}"])
    return _print(as_json, [dataclasses.asdict(alarm) for alarm in alarms], text)


def rescore_command(
    run: RunFolder,
    *,
    reward: Annotated[str, arg(metavar="PRESET", help=f"one of {', '.join(REWARDS)}")],
    changes: Changes = (),
    out: OptionalFile = None,
    as_json: Json = False,
) -> int:
    """A run's stored trajectories under another reward: ranks and dead groups.

    Args:
        out: by default rescored/PRESET.html in the run
    """
    from agentkit.lab import Lab
    from agentkit.rewards.rescoring import rescore
    from agentkit.views import plots

    folder = load_run(run)
    result = rescore(folder, Lab.of(folder).with_reward(reward=reward, **_overrides(changes)).reward, reward)
    out = out or folder.file("rescored", f"{reward}.html")
    write_bytes(out, plots.rescoring(result).to_html(include_plotlyjs=True).encode())
    write_bytes(out.with_suffix(".csv"), result.groups.to_csv(index=False).encode())
    table = result.table()
    text = [
        table.to_string(),
        *result.sentences(),
        f"{out} and {out.with_suffix('.csv').name}, one row a group",
    ]
    return _print(as_json, {"table": table.to_dict("index"), "figure": str(out)}, "\n".join(text))


def merge_command(
    run: RunFolder, *, dtype: Literal["float32", "float16", "bfloat16"] | None = None, as_json: Json = False
) -> int:
    """Fold a run's adapter into a full model in merged/, and check it.

    Args:
        dtype: by default that of the model it was trained on
    """
    from agentkit.training.merge import merge

    merged = merge(load_run(run), dtype)
    text = (
        f"{merged.path} ({merged.dtype}); over {merged.tokens} sampled tokens its log-probabilities differ "
        f"from the adapter's by {merged.mean_difference:.2g} nats on average, {merged.max_difference:.2g} at "
        f"most; the adapter itself moved them by {merged.adapter_effect:.2g} on average"
    )
    return _print(as_json, dataclasses.asdict(merged) | {"path": str(merged.path)}, text)


# ---- tasks
def tasks_command(*, n: Count = 1200, seed: int = 0, as_json: Json = False) -> int:
    """The table of task families: kinds, counts, difficulty, tools, licences.

    Args:
        n: tasks to build, shared among the families
        seed: of the tasks drawn
    """
    from agentkit.tasks.catalogue import catalogue, markdown

    rows = catalogue(n, seed)
    return _print(as_json, rows, markdown(rows))


def audit_command(suite: Annotated[Path, Positional, arg(metavar="SUITE")], *, as_json: Json = False) -> int:
    """Does every verifier tell right from wrong? Exit status 1 where not.

    Args:
        suite: a tasks.jsonl, or the run folder that holds one
    """
    from agentkit.lab import Lab
    from agentkit.tasks import Suite

    tasks = Suite.load(suite).tasks
    lab = Lab.of(load_run(suite)) if (suite / "run.json").exists() else Lab.open({})
    tasks = Suite(tasks, lab.environments)
    rows = tasks.audit()
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


def hub_command(
    name: Annotated[str, Positional, arg(metavar="NAME")],
    *,
    out: Annotated[Path, arg(metavar="FILE")],
    file: OptionalFile = None,
    split: OptionalWord = None,
    limit: OptionalCount = None,
    skip_broken: bool = False,
    force: bool = False,
    as_json: Json = False,
) -> int:
    """A suite of a public data set, from the hub or from local files, audited.

    Args:
        name: hotpotqa, 2wikimultihopqa, triviaqa, gsm8k, mbpp, humaneval, open_agentrl or gaia
        out: the tasks.jsonl to write
        file: a local file of the same schema, or a folder with one a split
        split: the data set's own name of a split
        limit: read at most that many rows
        skip_broken: leave broken rows out and count them
        force: save even when the audit fails
    """
    from agentkit.tasks import Suite
    from agentkit.tasks.public import gaia, hub

    if name == "gaia":
        if project_root() in out.resolve().parents:
            raise DataError(
                f"{out} lies inside the project, but GAIA must not be reshared: choose another folder"
            )
        tasks = gaia.load(file or gaia.HUB, split=split or "validation")[:limit]
        skipped, rows, audit = [], [], "not audited: its answers may not be shown"
    else:
        loaded = hub.load(name, file, split=split, limit=limit, skip_broken=skip_broken)
        tasks, skipped = loaded.tasks, loaded.skipped
        rows = Suite(tasks).audit()
        audit = _audit_text(rows, len(tasks))
    if not as_json:
        print(*(f"skipped: {sentence}" for sentence in skipped[:20]), audit, sep="\n")
    if not force and not all(row["passed"] for row in rows):
        raise DataError(f"not saved: the audit of {name} failed; --force saves it all the same")
    path = Suite(tasks).save(out, force=True)
    text = f"{len(tasks)} tasks ({len(skipped)} rows skipped) in {path}"
    return _print(as_json, {"path": str(path), "tasks": len(tasks), "skipped": skipped}, text)


# ---- the machine
def doctor_command(*, as_json: Json = False) -> int:
    """What this machine has: sandbox, engines, GPUs; what each gap costs."""
    from agentkit import doctor

    findings = doctor.examine()
    return _print(as_json, findings, doctor.as_text(findings))


def serve_command(
    model: Annotated[str, Positional, arg(metavar="MODEL")],
    *,
    merge: Annotated[tuple[Path, ...], UseAppendAction, arg(metavar="ADAPTER")] = (),
    host: str = "127.0.0.1",
    port: Count = 8000,
    lora_rank: int = 0,
    max_length: OptionalCount = None,
    memory: float = 0.9,
) -> None:
    """A vLLM server for recipes with engine: server; one replica a port.

    Args:
        model: nano, a model folder or a hub name
        merge: merge an adapter folder in
        host: keep it private, for whoever reaches the server can change its weights
        port: on which it listens
        lora_rank: for recipes with weight_sync: lora; their lora_r
        max_length: prompt and completion tokens at most
        memory: share of the GPU's memory
    """
    from agentkit.policies.serve import serve_command as command_of

    folder = project_root() / "outputs" / ".served" / str(port)
    limits = {"max_lora_rank": lora_rank, "max_length": max_length, "memory_share": memory}
    command, environment = command_of(model, folder, merge=list(merge), host=host, port=port, **limits)
    os.execve(command[0], command, environment)


def bench_command(
    name: Annotated[
        Literal["rollouts", "update", "sandbox", "verifiers", "end-to-end"],
        Positional,
        arg(help="what to measure"),
    ],
    *,
    json: OptionalFile = None,
    quick: bool = False,
) -> int:
    """Measure this kit against its peer, in one run; prints JSON.

    Args:
        json: also write the result to a file
        quick: end within about a minute
    """
    from agentkit.bench import BENCHES

    result = BENCHES[name](quick)
    if json:
        write_json(json, result)
    return _print(True, result, "")


def nano_command(
    *, out: OptionalFile = None, seed: int = 0, minutes: float = 44.0, as_json: Json = False
) -> int:
    """Pre-train the small agent again (under 45 minutes on two cores).

    Args:
        out: folder to write; by default the package's own data
        seed: of first weights and batches
        minutes: wall-clock budget of the training
    """
    from agentkit.nano import pretrain

    result = pretrain.pretrain(out or pretrain.DATA, seed=seed, minutes=minutes)
    return _print(as_json, result, str(result))


_ORDER = (
    new_command, run_command, preflight_command, cost_command, report_command, alarms_command,
    rescore_command, merge_command, tasks_command, audit_command, hub_command, doctor_command, serve_command,
    bench_command, nano_command,
)  # fmt: skip
COMMANDS = {command.__name__.removesuffix("_command"): command for command in _ORDER}

if __name__ == "__main__":
    sys.exit(main())
