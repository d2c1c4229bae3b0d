"""``autosched doctor``: what is installed, which GPU there is, and what would work. Loads neither torch nor triton."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autosched import __version__, settings
from autosched.cli import render
from autosched.cli.devices import SERVED, Found, find_gpus
from autosched.cli.errors import Exit
from autosched.cli.output import Output
from autosched.errors import AutoschedError

#: Packages by the names that are told, each with the distributions that may bring it.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "triton": ("triton",),
    "xgboost": ("xgboost", "xgboost-cpu"),
    "numpy": ("numpy",),
    "scipy": ("scipy",),
    "scikit-learn": ("scikit-learn",),
    "msgspec": ("msgspec",),
    "filelock": ("filelock",),
    "platformdirs": ("platformdirs",),
    "typer": ("typer",),
    "rich": ("rich",),
}
COMPILERS = ("cc", "gcc", "clang")


@dataclass(frozen=True)
class Check:
    """Something that one may want to do.

    Attributes:
        name: What.
        works: Whether it would work.
        why: With what, or why not and what to do.
    """

    name: str
    works: bool
    why: str


@dataclass(frozen=True)
class Report:
    """What ``doctor`` found.

    Attributes:
        autosched: Its version.
        python: Version of the interpreter.
        platform: Operating system and machine.
        versions: Of packages by name; empty where one is not installed.
        found: What the GPU driver says.
        torch_cuda: CUDA version that torch was built with; empty for none.
        paths: Folders that are written to, by what they are for.
        recorded: Folders of the shipped tables, by device.
        works: What would work.
        problem: A setting that cannot be used; empty if there is none.
    """

    autosched: str
    python: str
    platform: str
    versions: dict[str, str]
    found: Found
    torch_cuda: str
    paths: dict[str, str] = field(default_factory=dict)
    recorded: dict[str, str] = field(default_factory=dict)
    works: tuple[Check, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``autosched doctor``."""
        gpus = [
            {
                "name": gpu.name,
                "capability": f"{gpu.capability // 10}.{gpu.capability % 10}",
                "memory_bytes": gpu.memory_bytes,
                "served": gpu.served,
            }
            for gpu in self.found.gpus
        ]
        return {
            "format": 1,
            "autosched": self.autosched,
            "python": self.python,
            "platform": self.platform,
            "versions": {name: version or None for name, version in self.versions.items()},
            "missing": [name for name, version in self.versions.items() if not version],
            "gpu": {
                "found": bool(gpus),
                "devices": gpus,
                "driver": self.found.driver or None,
                "driver_cuda": self.found.cuda or None,
                "torch_cuda": self.torch_cuda or None,
                "problem": self.found.problem or None,
            },
            "works": {check.name: {"works": check.works, "why": check.why} for check in self.works},
            "paths": self.paths,
            "recorded": self.recorded,
            "problem": self.problem or None,
        }


def doctor(output: Output) -> int:
    """Looks and prints what it found.

    Returns:
        The exit code, always 0.
    """
    report = examine()
    output.result(report.to_dict(), lambda: render.installation(report))
    return int(Exit.DONE)


def examine() -> Report:
    """Looks at the installation."""
    versions = {name: _version(distributions) for name, distributions in PACKAGES.items()}
    found, torch_cuda = find_gpus(), _torch_cuda()
    paths, problem = _paths()
    recorded = _recorded()
    return Report(
        autosched=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        versions=versions,
        found=found,
        torch_cuda=torch_cuda,
        paths=paths,
        recorded=recorded,
        works=checks(versions, found, torch_cuda, tuple(recorded), compiler=_compiler()),
        problem=problem,
    )


def checks(
    versions: Mapping[str, str], found: Found, torch_cuda: str, recorded: tuple[str, ...], *, compiler: str
) -> tuple[Check, ...]:
    """What would work with that much.

    Args:
        versions: Of packages; empty where one is not installed.
        found: What the GPU driver says.
        torch_cuda: CUDA version of torch.
        recorded: Devices whose measurements are shipped.
        compiler: The C compiler; empty for none.
    """
    base = _lacking(versions, ("xgboost", "numpy", "msgspec", "filelock", "platformdirs"))
    replay = Check("replay", False, base) if base else _replay(recorded)
    lacking = _lacking(versions, ("triton", "numpy"))
    compile_ = Check("compile", not lacking, lacking or f"with triton {versions['triton']}, no GPU needed")
    return replay, compile_, _tune(versions, found, torch_cuda, compiler)


def _replay(recorded: tuple[str, ...]) -> Check:
    if not recorded:
        return Check("replay", False, "no recorded device is shipped; give a log to autosched replay")
    return Check("replay", True, f"--on recorded replays {', '.join(recorded)}")


def _tune(versions: Mapping[str, str], found: Found, torch_cuda: str, compiler: str) -> Check:
    lacking = _lacking(versions, tuple(PACKAGES))
    served = [gpu for gpu in found.gpus if gpu.served]
    why = ""
    if not found.gpus:
        why = f"{found.problem}; use --on recorded"
    elif not served:
        names = ", ".join(gpu.name for gpu in found.gpus)
        why = f"{names}: compute capability has to be one of {', '.join(f'{c / 10}' for c in SERVED)}"
    elif lacking:
        why = lacking
    elif not torch_cuda:
        why = "torch is a CPU build; install one built with CUDA"
    elif not compiler:
        why = f"Triton needs a C compiler to launch kernels; install one of {', '.join(COMPILERS)}"
    return Check("tune", not why, why or f"on {served[0].name}")


def _lacking(versions: Mapping[str, str], names: tuple[str, ...]) -> str:
    missing = [name for name in names if not versions.get(name)]
    return f"pip install {' '.join(missing)}" if missing else ""


def _version(distributions: tuple[str, ...]) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _torch_cuda() -> str:
    """CUDA version that torch was built with, read from its version file: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found[1] if found else ""


def _compiler() -> str:
    return next((name for name in COMPILERS if shutil.which(name)), "")


def _paths() -> tuple[dict[str, str], str]:
    try:
        found = settings.load()
    except AutoschedError as error:
        return {}, str(error)
    paths = {"home": found.home, "logs": found.logs, "store": found.store, "cache": found.cache}
    return {name: str(path) for name, path in paths.items()}, ""


def _recorded() -> dict[str, str]:
    from autosched.recorded import recorded_devices

    return {device: str(folder) for device, folder in recorded_devices().items()}
