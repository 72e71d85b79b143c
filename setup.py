"""A wheel holds notebooks/ and params/ too, in agentkit/project; pyproject.toml says everything else."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithProject(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for name in ("notebooks", "params"):
                target = Path(self.build_lib) / "agentkit" / "project" / name
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(name, target, ignore=shutil.ignore_patterns("__pycache__", ".*"))


setup(cmdclass={"build_py": WithProject})
