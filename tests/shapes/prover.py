"""Runs pyrefly over copies of the kernels whose dimensions are declared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from tests.shapes.declare import declared
from tests.shapes.stubs import complete_stubs

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = ROOT / ".venv-pyrefly"
SOURCE = ROOT / "src/rollout_contract"

CONFIG = """
preset = "strict"
project-includes = ["src/rollout_contract/kernels/*.py"]
search-path = ["src", "."]

[errors]
# Of Python 3.12, and nothing about shapes: @override, and an autograd function's signature, which torch leaves open.
missing-override-decorator = false
bad-override = false
"""


class Error(NamedTuple):
    """What pyrefly reports: the module of ``kernels``, a line of its declared copy."""

    module: str
    line: int
    rule: str
    message: str


def kernel_sources() -> dict[str, str]:
    """The kernels that work on tensors, by module name."""
    paths = sorted((SOURCE / "kernels").glob("*.py"))
    sources = {path.stem: path.read_text() for path in paths}
    return {name: text for name, text in sources.items() if "from jaxtyping import" in text}


def prove(folder: Path, modules: dict[str, str]) -> list[Error]:
    """The errors in ``modules`` (declared sources by module name), as members of the package ``kernels``."""
    (site_packages,) = ENVIRONMENT.glob("lib/python*/site-packages")
    shutil.copytree(SOURCE, folder / "src/rollout_contract", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in modules.items():
        (folder / f"src/rollout_contract/kernels/{name}.py").write_text(text)
    complete_stubs(site_packages, folder)
    (folder / "pyrefly.toml").write_text(CONFIG)
    paths = [f"--site-package-path={path}" for path in (site_packages, sysconfig.get_path("purelib"))]
    version = "{}.{}".format(*sys.version_info)
    command = [ENVIRONMENT / "bin/pyrefly", "check", "--output-format=json", "--summary=none", *paths]
    done = subprocess.run(
        [*map(str, command), f"--python-version={version}"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return [
        Error(Path(error["path"]).stem, error["line"], error["name"], error["description"])
        for error in json.loads(done.stdout)["errors"]
        if error["severity"] == "error"
    ]


def declared_kernels() -> dict[str, str]:
    return {name: declared(text) for name, text in kernel_sources().items()}
