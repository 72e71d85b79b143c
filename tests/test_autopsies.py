"""The notebook of the three autopsies, executed headless on a small budget."""

from __future__ import annotations

from pathlib import Path

import nbformat
import papermill
import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "n_tasks": 80,
    "sft_transcripts": 1,
    "steps": 1,
    "prompts_per_step": 2,
    "micro_batch": 8,
    "val_every": 1,
    "val_tasks": 2,
}


@pytest.mark.slow
def test_the_notebook_names_each_cause_and_trains_on_what_was_mended(tmp_path):
    out = tmp_path / "autopsies.ipynb"
    papermill.execute_notebook(
        ROOT / "notebooks" / "autopsies.ipynb",
        out,
        {"run": str(tmp_path)} | SMALL,
        cwd=ROOT,
        progress_bar=False,
    )
    outputs = " ".join(
        str(cell.outputs) for cell in nbformat.read(out, as_version=4).cells if cell.cell_type == "code"
    )
    for phrase in ("unanchored", "another value each time", "num_turns", "which no record holds"):
        assert phrase in outputs
    for name in ("003-mended", "000-mended", "001-mended"):
        assert (tmp_path / "autopsies" / name / "adapter" / "adapter_model.safetensors").exists()
