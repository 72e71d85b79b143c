"""The command line. Each command imports what it needs when it runs, so that ``--help`` and ``doctor`` load
no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from agentkit.policies import EngineError
from agentkit.runs import Run, RunError, load_run, project_root, stages, write_bytes, write_json
from agentkit.runs.recipe import REWARDS, Recipe, RecipeError, read_recipe
from agentkit.sandbox import SandboxError
from agentkit.tasks import SuiteError

MISTAKES = (
    RecipeError,
    RunError,
    SuiteError,
    EngineError,
    SandboxError,
    OSError,
)  # the user's or the machine's, not ours


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Errors of the user's making are one sentence and exit status 2."""
    options = _parser().parse_args(arguments)
    os.umask(0o077)  # run folders are private
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return options.command(options)
    except MISTAKES as error:
        print(f"agentkit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("agentkit: stopped; what was finished is kept, run the same command to go on", file=sys.stderr)
        return 130


def _warn(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Our own warnings, such as of a torn line, as one sentence too."""
    if category is UserWarning:
        print(f"agentkit: {' '.join(str(message).split())}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentkit", description="Reliable tool-using agents through GRPO.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_training, _add_reading, _add_tasks, _add_machine):
        add(commands)
    return parser


def _argument(*names: str, **options: Any) -> argparse.ArgumentParser:
    """An argument that several commands share, as a parent of their parsers."""
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument(*names, **options)
    return parent


_RECIPE = _argument("recipe", type=Path, help="a YAML file in params/")
_RUN = _argument("run", type=Path, help="the run folder, such as outputs/a")
_CHANGES = _argument(
    "-p", dest="changes", action="append", default=[], metavar="KEY=VALUE", help="override a recipe key"
)


def _add_training(commands: Any) -> None:
    run = commands.add_parser(
        "run", parents=[_RECIPE, _CHANGES], help="notebooks 01 to 05 with a recipe, into a run folder"
    )
    run.add_argument("--run", type=Path, required=True, help="the run folder, such as outputs/a")
    run.add_argument(
        "--from", dest="first", default=None, metavar="NN", help="execute from this notebook on, even if done"
    )
    run.add_argument(
        "--to", dest="last", default=stages.STAGES[-1], metavar="NN", help="stop after this notebook"
    )
    run.set_defaults(command=run_command)
    preflight = commands.add_parser(
        "preflight",
        parents=[_RECIPE, _CHANGES],
        help="is a run worth starting? from some rollouts; exit status 1 where not",
    )
    preflight.add_argument(
        "--run", type=Path, default=None, help="a run whose tasks and cold start are used, as outputs/a"
    )
    preflight.set_defaults(command=preflight_command)
    cost = commands.add_parser(
        "cost", parents=[_RECIPE, _CHANGES], help="GPU-hours, wall clock and money, before any is spent"
    )
    cost.add_argument(
        "--run",
        type=Path,
        default=None,
        help="a run to measure the rates on, and to compare the forecast with",
    )
    cost.add_argument("--gpus", type=_count, default=4, help="GPUs to spread the phases over (4)")
    cost.add_argument("--run-gpus", type=_count, default=1, help="GPUs that --run ran on (1)")
    cost.add_argument("--prices", type=Path, default=None, metavar="F", help="by default params/prices.yaml")
    cost.set_defaults(command=cost_command)
    serve = commands.add_parser(
        "serve", help="a vLLM server for recipes with engine: server; one replica a port"
    )
    serve.add_argument("model", help="nano, a model folder or a hub name")
    serve.add_argument(
        "--merge",
        type=Path,
        action="append",
        default=[],
        metavar="ADAPTER",
        help="merge an adapter folder in",
    )
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="keep it private: whoever reaches the server can change its weights",
    )
    serve.add_argument("--port", type=_count, default=8000)
    serve.add_argument(
        "--lora-rank",
        type=int,
        default=0,
        metavar="R",
        help="for recipes with weight_sync: lora; their lora_r",
    )
    serve.add_argument(
        "--max-length", type=_count, default=None, metavar="T", help="prompt and completion tokens at most"
    )
    serve.add_argument("--memory", type=float, default=0.9, metavar="SHARE", help="of the GPU's memory")
    serve.set_defaults(command=serve_command)


def _add_reading(commands: Any) -> None:
    report = commands.add_parser(
        "report", parents=[_RUN], help="a run's card: one HTML file that opens offline, secrets masked"
    )
    report.add_argument(
        "--out", type=Path, default=None, metavar="F", help="by default report.html in the run"
    )
    report.set_defaults(command=report_command)
    alarms = commands.add_parser(
        "alarms", help="what went wrong in a training; or how often the alarms are right"
    )
    what = alarms.add_mutually_exclusive_group(required=True)
    what.add_argument("run", type=Path, nargs="?", default=None, help="the run folder, such as outputs/a")
    what.add_argument(
        "--measure", type=_count, metavar="N", help="simulate N runs of each fault and 3 N healthy ones"
    )
    alarms.set_defaults(command=alarms_command)
    rescore = commands.add_parser(
        "rescore",
        parents=[_RUN, _CHANGES],
        help="a run's stored trajectories under another reward: ranks and dead groups",
    )
    rescore.add_argument("--reward", required=True, metavar="PRESET", help=f"one of {', '.join(REWARDS)}")
    rescore.add_argument(
        "--out", type=Path, default=None, metavar="F", help="by default rescored/PRESET.html in the run"
    )
    rescore.set_defaults(command=rescore_command)
    merge = commands.add_parser(
        "merge", parents=[_RUN], help="fold a run's adapter into a full model in merged/, and check it"
    )
    kinds = ["float32", "float16", "bfloat16"]
    merge.add_argument(
        "--dtype", choices=kinds, default=None, help="by default that of the model it was trained on"
    )
    merge.set_defaults(command=merge_command)


def _add_tasks(commands: Any) -> None:
    tasks = commands.add_parser(
        "tasks", help="the table of task families: kinds, counts, difficulty, tools, licences"
    )
    tasks.add_argument(
        "--n", type=_count, default=1200, help="tasks to build, shared among the families (1200)"
    )
    tasks.add_argument("--seed", type=int, default=0, help="of the tasks drawn (0)")
    tasks.set_defaults(command=tasks_command)
    audit = commands.add_parser(
        "audit", help="does every verifier tell right from wrong? exit status 1 where not"
    )
    audit.add_argument("suite", type=Path, help="a tasks.jsonl, or the run folder that holds one")
    audit.set_defaults(command=audit_command)
    hub = commands.add_parser("hub", help="a suite of a public data set, from the hub or from local files")
    hub.add_argument(
        "name", help="hotpotqa, 2wikimultihopqa, triviaqa, gsm8k, mbpp, humaneval, open_agentrl or gaia"
    )
    hub.add_argument("--out", type=Path, required=True, metavar="F", help="the tasks.jsonl to write")
    hub.add_argument(
        "--file",
        type=Path,
        default=None,
        help="a local file of the same schema, or a folder with one a split",
    )
    hub.add_argument("--split", default=None, help="the data set's own name of a split")
    hub.add_argument("--limit", type=_count, default=None, help="read at most that many rows")
    hub.add_argument("--skip-broken", action="store_true", help="leave broken rows out and count them")
    hub.add_argument("--force", action="store_true", help="save even when the audit fails")
    hub.set_defaults(command=hub_command)


def _add_machine(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor", help="what this machine has: sandbox, engines, GPUs; what each gap costs"
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(command=doctor_command)
    bench = commands.add_parser("bench", help="measure this kit against its peer, in one run")
    bench.add_argument("name", choices=["rollouts", "update", "sandbox", "verifiers", "end-to-end"])
    bench.add_argument("--json", type=Path, default=None, metavar="F", help="also write the result to a file")
    bench.add_argument("--quick", action="store_true", help="end within about a minute")
    bench.set_defaults(command=bench_command)
    nano = commands.add_parser("nano", help="pre-train the small agent again (under 45 minutes on two cores)")
    nano.add_argument(
        "--out", type=Path, default=None, help="folder to write; by default the package's own data"
    )
    nano.add_argument("--seed", type=int, default=0, help="of first weights and batches (0)")
    nano.add_argument("--minutes", type=float, default=44.0, help="wall-clock budget of the training (44)")
    nano.set_defaults(command=nano_command)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number from 1 to 100000")
    return int(text)


def audit_command(options: argparse.Namespace) -> int:
    """Print a suite's audit; exit status 1 where a task fails it."""
    from agentkit.tasks import Suite

    suite = Suite.load(options.suite)
    return _print_audit(suite.audit(), len(suite))


def _print_audit(rows: list[dict[str, Any]], tasks: int) -> int:
    import pandas as pd

    print(
        pd.DataFrame([row for row in rows if row["passed"]])
        .dropna(axis=1, how="all")
        .to_string(index=False, na_rep="")
    )
    failures = [row for row in rows if not row["passed"]]
    if failures:
        named = [
            {k: str(row[k])[:60] for k in ("check", "task", "verifier", "value", "answer", "why")}
            for row in failures
        ]
        print(f"\n{pd.DataFrame(named[:50]).to_string(index=False)}")
    print(
        f"\n{tasks} tasks, {len({row['task'] for row in failures})} of them fail a check ({len(failures)} "
        "failures)"
    )
    return 1 if failures else 0


def tasks_command(options: argparse.Namespace) -> int:
    """Print the table of task families."""
    from agentkit.tasks.catalogue import catalogue, markdown

    print(markdown(catalogue(options.n, options.seed)))
    return 0


def hub_command(options: argparse.Namespace) -> int:
    """Save a public data set as a suite, after its audit. GAIA goes unaudited: its answers may not be shown."""
    from agentkit.tasks import Suite
    from agentkit.tasks.public import hub

    if options.name == "gaia":
        from agentkit.tasks.public import gaia

        tasks = gaia.load(options.file or gaia.HUB, split=options.split or "validation")[: options.limit]
        if project_root() in options.out.resolve().parents:
            raise RunError(
                f"{options.out}: GAIA must not be reshared, so it is not written inside the project; choose "
                "another folder"
            )
        print(f"{len(tasks)} tasks in {Suite(tasks).save(options.out, force=True)}")
        return 0
    loaded = hub.load(
        options.name, options.file, split=options.split, limit=options.limit, skip_broken=options.skip_broken
    )
    for sentence in loaded.skipped[:20]:
        print(f"skipped: {sentence}")
    suite = Suite(loaded.tasks)
    status = _print_audit(suite.audit(), len(suite))
    if status and not options.force:
        raise RunError(f"not saved: the audit of {options.name} failed; --force saves it all the same")
    print(f"{len(suite)} tasks ({len(loaded.skipped)} rows skipped) in {suite.save(options.out, force=True)}")
    return 0


def rescore_command(options: argparse.Namespace) -> int:
    """Print what another reward would have told apart, and write the table and the figure."""
    from agentkit.rewards.rescoring import rescore, reward_of
    from agentkit.views import plots

    run = load_run(options.run)
    changes = {"reward": options.reward} | _overrides(options.changes)
    result = rescore(run, reward_of(run, changes), options.reward)
    out = options.out or run.file("rescored", f"{options.reward}.html")
    print(result.table().to_string(), *result.sentences(), sep="\n")
    write_bytes(out, plots.rescoring(result).to_html(include_plotlyjs=True).encode())
    write_bytes(out.with_suffix(".csv"), result.groups.to_csv(index=False).encode())
    print(f"{out} and {out.with_suffix('.csv').name}, one row a group")
    return 0


def serve_command(options: argparse.Namespace) -> int:
    """Become a server of the model; returns only where it cannot start."""
    from agentkit.policies.serve import serve_command as command_of

    folder = project_root() / "outputs" / ".served" / str(options.port)
    limits = {
        "max_lora_rank": options.lora_rank,
        "max_length": options.max_length,
        "memory_share": options.memory,
    }
    command, environment = command_of(
        options.model, folder, merge=options.merge, host=options.host, port=options.port, **limits
    )
    os.execve(command[0], command, environment)


def preflight_command(options: argparse.Namespace) -> int:
    """Print the preflight report; exit status 1 where the run is not worth starting."""
    from agentkit.policies.loading import load_agent, make_policy
    from agentkit.preflight import examine
    from agentkit.tasks import Suite

    recipe = _recipe(options)
    run = load_run(options.run) if options.run else None
    spec = {
        "families": recipe.families.split(","),
        "n_tasks": recipe.n_tasks,
        "seed": recipe.seed,
        "variety": recipe.variety,
    }
    suite = Suite.load(run.path) if run else Suite.build(spec)
    cold_start = [run.file("sft")] if run and recipe.sft and run.file("sft").exists() else []
    model, tokenizer = load_agent(recipe.model, merge=cold_start)
    policy = make_policy(model, tokenizer, "sft", recipe)
    n_test, progress = len(suite.split("test")), sys.stderr.isatty()
    found, _ = examine(recipe, policy, suite.split("train"), model=model, n_test=n_test, progress=progress)
    print(found.text())
    return 1 if found.causes else 0


def alarms_command(options: argparse.Namespace) -> int:
    """Print the alarms of a run, judged again from what is stored; or precision, recall and delay of every
    alarm.
    """
    if options.measure:
        from agentkit.bench.alarms import measured

        print(
            measured(options.measure, 3 * options.measure, progress=sys.stderr.isatty())
            .round(2)
            .to_string(index=False)
        )
        return 0
    from agentkit.diagnostics import stored_alarms

    found = stored_alarms(load_run(options.run))
    for alarm in found:
        print(f"step {alarm.step}, {alarm.severity}: {alarm.alarm}\n  {alarm.cause}\n  -> {alarm.advice}")
        print(f"  {', '.join(alarm.evidence[:4])}")
    print(f"{len(found)} alarm{'s' * (len(found) != 1)}")
    return 0


def report_command(options: argparse.Namespace) -> int:
    """Write a run's card."""
    from agentkit.views.card import write_report

    path = write_report(load_run(options.run), options.out)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


def merge_command(options: argparse.Namespace) -> int:
    """Merge a run's adapter into the full model."""
    from agentkit.training.merge import merge

    found = merge(load_run(options.run), options.dtype)
    print(
        f"{found.path} ({found.dtype}); over {found.tokens} sampled tokens its log-probabilities differ from "
        "the adapter's by "
        f"{found.mean_difference:.2g} nats on average, {found.max_difference:.2g} at most; the adapter "
        "itself moved them by "
        f"{found.adapter_effect:.2g} on average"
    )
    return 0


def cost_command(options: argparse.Namespace) -> int:
    """Print what a recipe costs, and against a run what it did cost."""
    from agentkit.runs import cost

    recipe = _recipe(options)
    prices = cost.read_prices(options.prices)
    rates = prices.rates_of(recipe.model)
    if options.run is not None:
        run = load_run(options.run)
        rates = cost.measured_rates(run, options.run_gpus)
        table = cost.against_table(run, prices, options.run_gpus)
        print(
            f"What {run.path.name} was forecast to take, from its recipe alone, and what it took (time of "
            "one device):\n"
        )
        print(table.to_string(index=False), end="\n\n")
    seconds = cost.forecast(recipe, rates)
    print(f"{options.recipe}; rates: {rates.source}")
    for table in (
        cost.phase_table(seconds, options.gpus),
        cost.project_table(seconds, prices),
        cost.money_table(seconds, prices),
    ):
        print(f"\n{table.to_string(index=False)}")
    print(f"\n{cost.other_table(prices).to_string(index=False)}")
    return 0


def nano_command(options: argparse.Namespace) -> int:
    """Pre-train the small agent."""
    from agentkit.nano import pretrain

    print(pretrain.pretrain(options.out or pretrain.DATA, seed=options.seed, minutes=options.minutes))
    return 0


def doctor_command(options: argparse.Namespace) -> int:
    """Print what this machine has."""
    from agentkit import doctor

    found = doctor.examine()
    print(json.dumps(found, indent=1) if options.json else doctor.as_text(found))
    return 0


def bench_command(options: argparse.Namespace) -> int:
    """Run a benchmark and print it as JSON."""
    from agentkit.bench import BENCHES

    result = BENCHES[options.name](options.quick)
    print(json.dumps(result, indent=1))
    if options.json:
        write_json(options.json, result)
    return 0


def run_command(options: argparse.Namespace) -> int:
    """Execute the stages of a run that are not done yet, then print the comparison table and write the run
    card.
    """
    recipe = _recipe(options)
    first = 0 if options.first is None else stages.stage_number(options.first)
    last = stages.stage_number(options.last)
    if first > last:
        raise RecipeError(f"--from {options.first} comes after --to {options.last}: nothing would run")
    if ".." in options.run.parts:
        raise RunError(f"run folder {str(options.run)[:80]!r} is refused: write it without '..'")
    run = Run.create(Run(options.run).path.resolve())
    stages.run_stages(run, recipe.used(), first, last, anew=options.first is not None)
    if last == len(stages.STAGES) - 1:
        _print_comparison(run)
        report_command(argparse.Namespace(run=run.path, out=None))
    return 0


def _recipe(options: argparse.Namespace) -> Recipe:
    return Recipe.from_mapping(read_recipe(options.recipe) | _overrides(options.changes))


def _overrides(pairs: Sequence[str]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RecipeError(f"-p {pair[:80]}: write it as KEY=VALUE")
        try:
            found[key] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise RecipeError(f"-p {pair[:80]}: {value[:60]!r} is not a YAML value") from None
    return found


def _print_comparison(run: Run) -> None:
    from agentkit.evaluation import Comparison

    comparison = Comparison.from_json(run.comparison, run.file("comparison.json"))
    print(
        f"\n{comparison.table().to_string()}\n",
        *comparison.sentences(),
        f"\nrun folder: {run.path}",
        sep="\n",
    )


if __name__ == "__main__":
    sys.exit(main())
