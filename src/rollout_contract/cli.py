"""The console script ``rollout-contract``. Its commands need the extra ``cli`` (typer and rich)."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say which extra is missing."""
    try:
        from rollout_contract.check.command import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"the command line needs {error.name}: pip install 'rollout-contract[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    app()
