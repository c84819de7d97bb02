# SPDX-License-Identifier: Apache-2.0
"""The built command, for tests that run it as a user does."""

import os
import pathlib
import subprocess

import pytest


def command_path():
    """What OPS_TRANSFORMER_COMMAND names, or where scripts/build.sh builds it."""
    built = pathlib.Path(__file__).parents[2] / "build/release/bin/ops-transformer"
    path = pathlib.Path(os.environ.get("OPS_TRANSFORMER_COMMAND", built))
    if not path.exists():
        pytest.skip(f"no command at {path}: scripts/build.sh builds it, OPS_TRANSFORMER_COMMAND names another place")
    return path


def run_command(*arguments, **options):
    return subprocess.run([command_path(), *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)
