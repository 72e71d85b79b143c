"""A run: its folder and manifest, the files in it, the recipe it came from and the notebooks that make it.

Leaves out what the files mean: evaluation, diagnostics and views read them.
"""

from agentkit.recipe import Recipe, RecipeError, find_file, project_root, read_recipe
from agentkit.records import RunError
from agentkit.rows import parse_json, read_json, read_jsonl
from agentkit.runs.files import (
    append_jsonl,
    append_to,
    cut_jsonl,
    digest,
    encode_json,
    user_cache,
    write_bytes,
    write_json,
    write_jsonl,
    write_table,
    writing,
)
from agentkit.runs.run import Run, check_name, load_run, secure, versions, with_progress
from agentkit.runs.schemas import SPLITS, fault
from agentkit.runs.trajectory_files import (
    read_tasks,
    read_trajectories,
    task_problem,
    write_tasks,
    write_trajectories,
)

__all__ = [
    "Recipe", "RecipeError", "Run", "RunError", "SPLITS", "append_jsonl", "append_to", "check_name",
    "cut_jsonl", "digest", "encode_json", "fault", "find_file",
    "load_run", "parse_json", "project_root", "read_json", "read_jsonl",
    "read_recipe", "read_tasks", "read_trajectories", "secure",
    "task_problem", "user_cache", "versions", "with_progress", "write_bytes", "write_json",
    "write_jsonl", "write_table", "write_tasks", "write_trajectories", "writing",
]  # fmt: skip
