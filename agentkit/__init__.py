"""agentkit: make tool-using language-model agents reliable with reinforcement learning from verifiable
rewards.

Importing it loads nothing else; each name below loads its module when it is first used, and only policies and
training load torch.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

__version__ = "0.1.0"
_HOME = {  # where each public name is defined
    "Family": "tasks",
    "Group": "records",
    "Lab": "lab",
    "Score": "records",
    "StopReason": "records",
    "Task": "records",
    "ToolCall": "records",
    "Trajectory": "records",
    "Turn": "records",
    "Recipe": "runs.recipe",
    "Run": "runs",
    "Suite": "tasks",
    "arollout": "rollouts",
    "compare": "evaluation",
    "load_run": "runs",
    "rollout": "rollouts",
    "tool": "tools.runtime",
    "verify": "verifiers",
}
_ROOMS = (
    *(
        "bench",
        "diagnostics",
        "doctor",
        "evaluation",
        "lab",
        "nano",
        "policies",
        "preflight",
        "records",
    ),
    *(
        "rewards",
        "rollouts",
        "runs",
        "sandbox",
        "tasks",
        "tools",
        "training",
        "trajectories",
        "verifiers",
        "views",
    ),
)
_ALIASES = {
    "agentkit.advantages": "agentkit.training.advantages",
    "agentkit.chat": "agentkit.rollouts.chat",
}  # stable names
__all__ = [*_HOME, "advantages", "chat", "evaluation", "sandbox", "verifiers"]


def __getattr__(name: str) -> object:
    """A public name on first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"agentkit.{_HOME[name]}"), name)
    if name in _ROOMS or f"agentkit.{name}" in _ALIASES:
        return importlib.import_module(f"agentkit.{name}")
    raise AttributeError(f"module 'agentkit' has no attribute {name!r}")


class _Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a stable module name as the module it stands for: one module, two names."""

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name in _ALIASES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self._own = importlib.import_module(_ALIASES[spec.name]).__spec__
        return sys.modules[_ALIASES[spec.name]]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own  # the import system has just put the alias's there


sys.meta_path.append(_Aliases())
