"""A run repeated from its manifest, and what came out differently: on a CPU, bit for bit the same.

Leaves out what depends on the clock: seconds, dates and cache hits.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentkit.records import RunError
from agentkit.runs.files import digest, read_json
from agentkit.runs.recipe import Recipe
from agentkit.runs.run import MANIFEST, Run, git_state, versions
from agentkit.runs.stages import STAGES, file_digests, run_stages

_BYTES = ("tasks.jsonl", "adapter/adapter_model.safetensors", "sft/adapter_model.safetensors")
_METRICS, _JSON = "train/metrics.jsonl", ("baseline.json", "comparison.json")


def rerun(run: Run, to: Run) -> tuple[list[str], list[str]]:
    """Repeat a run into another folder: what differs in the circumstances, and what in the results.

    Raises:
        RunError: there is nothing to repeat, or the folder holds another run.
    """
    manifest, known = run.manifest, Recipe.keys()
    done = [s for s in STAGES if manifest["stages"].get(s, {}).get("status") == "done"]
    if not done:
        raise RunError(f"{run.path} has no finished notebook to repeat. Finish it with agentkit run.")
    if to.file(MANIFEST).exists() and to.manifest.get("rerun_of") != {"path": str(run.path)}:
        raise RunError(f"{to.path} holds another run. Name an empty folder with --to.")
    recipe = {name: value for name, value in manifest["recipe"].items() if name in known and name != "run"}
    files = file_digests(recipe)
    around = [f"recipe key {name}: unknown here" for name in sorted(manifest["recipe"].keys() - known)]
    now = {"versions": versions(), "git": git_state(), "lab": {"file": files.get("lab", "")}}
    before = manifest | {"lab": {"file": manifest["stages"][done[-1]].get("lab", "")}}
    for name, values in now.items():
        around += [f"{name}, {one}" for one in _differing(before.get(name, {}), values)]
    Run.create(to.path).update(rerun_of={"path": str(run.path)})
    if not run_stages(to, recipe, 0, STAGES.index(done[-1]), files=files):
        raise KeyboardInterrupt
    return around, list(_results(run, to))


def _differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    return [f"{n}: {before.get(n)} then, {after.get(n)} now" for n in names if before.get(n) != after.get(n)]


def _results(run: Run, to: Run) -> Iterator[str]:
    """Sentences on files of both that differ in what does not depend on the clock; one may hold others, of
    notebooks that were not finished or of another recipe.
    """
    measured = (f"eval/{name}.parquet" for name in run.measured)
    for name in (*_BYTES, _METRICS, *measured, *_JSON):
        if run.file(name).exists() and to.file(name).exists():
            yield from _compared(name, run, to)


def _compared(name: str, run: Run, to: Run) -> Iterator[str]:
    """Sentences on a file that both have."""
    if name == _METRICS:
        timed = ("seconds", "tool_cache_hits")
        rows = [
            [
                {n: v for n, v in row.items() if not any(word in n for word in timed)}
                for row in one.metric_rows()
            ]
            for one in (run, to)
        ]
        if rows[0] != rows[1]:
            step = next((a["step"] for a, b in zip(*rows, strict=False) if a != b), None)
            longer = f"{name} has {len(rows[0])} rows then, {len(rows[1])} now, and the first are the same"
            yield longer if step is None else f"{name} differs from step {step} on"
    elif name.startswith("eval/"):
        policy = Path(name).stem
        tokens = [[(t.task_id, t.sample, t.completion_ids, t.success) for t in one.trajectories(policy)]
                  for one in (run, to)]  # fmt: skip
        if tokens[0] != tokens[1]:
            changed = sum(a != b for a, b in zip(*tokens, strict=False))
            yield f"{name} differs in {changed} of {len(tokens[0])} trajectories"
    else:
        read = read_json if name in _JSON else digest
        if read(run.file(name)) != read(to.file(name)):
            yield f"{name} differs"
