"""A real JupyterLab and one notebook in it, driven as a person drives it: menus, shortcuts, buttons."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
from engines import free_port

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR IPYTHONDIR JUPYTERLAB_WORKSPACES_DIR".split()
)
QUEUED = (
    "[...document.querySelectorAll('.jp-InputPrompt')].some((prompt) => prompt.textContent.includes('*'))"
)


@contextmanager
def served(root: Path):
    """JupyterLab on a folder, with the settings of make lab: its address, with a token. Nothing of it is left."""
    port, token, home = free_port(), secrets.token_hex(16), root.parent / f".{root.name}-jupyter"
    words = ["--no-browser", "--allow-root", f"--port={port}", "--ServerApp.port_retries=0",
             f"--LabApp.app_settings_dir={ROOT}/.ci/jupyterlab", f"--ServerApp.root_dir={root}",
             f"--IdentityProvider.token={token}"]  # fmt: skip
    home.mkdir(exist_ok=True)
    paths = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    environ = os.environ | {name: str(home / name) for name in FOLDERS} | {"PYTHONPATH": paths}
    environ["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    with (home / "lab.log").open("w") as log:
        command = [sys.executable, "-m", "jupyterlab", *words]
        server = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api", server)
            yield f"http://127.0.0.1:{port}", token
        finally:
            server.terminate()  # it ends its kernels
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)


def _wait_for(address, server, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, "JupyterLab does not answer"
            time.sleep(0.3)


def with_parameters(source: Path, target: Path, **parameters) -> Path:
    """A copy of a notebook with other parameters, as a person would type them into its first code cell."""
    notebook = nbformat.read(source, as_version=4)
    cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in parameters.items())
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    return target


class Notebook:
    """A notebook opened in JupyterLab in a browser page of its own."""

    def __init__(self, browser, lab, root: Path, path: str, **options):
        (self.address, self.token), self.path = lab, root / path
        self.context = browser.new_context(viewport={"width": 1360, "height": 1000}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.page.goto(f"{self.address}/lab/tree/{path}?reset&token={self.token}")
        # asked sooner, JupyterLab asks which kernel
        self.page.get_by_text(re.compile(r"\| Idle$")).wait_for()

    def menu(self, name: str, item: str) -> None:
        """Choose an item of a menu of the menu bar."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{name}$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{item}$")).click()

    def run_all(self) -> None:
        """Run All Cells: they are queued."""
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function(f"() => {QUEUED}")

    def run_cell(self, code: str) -> None:
        """Run the cell that holds this code, and no other."""
        self.page.locator(".jp-CodeCell .jp-Editor", has_text=code).click()
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(f"() => {QUEUED}")

    def interrupt(self) -> None:
        """Press ■ in the notebook's toolbar."""
        self.page.locator("[data-command='notebook:interrupt-kernel']").click()

    def is_running(self) -> bool:
        """Whether a cell runs or is queued."""
        return self.page.evaluate(QUEUED)

    def finished(self) -> nbformat.NotebookNode:
        """Wait until nothing runs and nothing is queued; what was saved."""
        self.page.wait_for_function(f"() => !{QUEUED}", timeout=300_000)
        return self.saved()

    def saved(self) -> nbformat.NotebookNode:
        """Save it, and what then lies on the disk."""
        before = self.path.stat().st_mtime_ns
        self.menu("File", "Save Notebook")
        wait_until(lambda: self.path.stat().st_mtime_ns != before and self.path.read_text().endswith("}\n"))
        return nbformat.read(self.path, as_version=4)

    def close(self):
        """Shut the kernel down, and close the page."""
        self.menu("Kernel", "Shut Down Kernel")
        self.page.wait_for_timeout(500)
        self.context.close()


def wait_until(true, seconds=120.0):
    """Poll until something holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Errors in a notebook's outputs, and warnings, which stderr holds."""
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    errors = [f"{o.ename}: {o.evalue}" for o in outputs if o.output_type == "error"]
    return errors + [o.text for o in outputs if o.get("name") == "stderr"]
