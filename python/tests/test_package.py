# SPDX-License-Identifier: Apache-2.0
"""What the package promises about itself: stubs, marker, one library, few imports, the command."""

import ast
import pathlib
import subprocess
import sys

import pytest

import ops_transformer as ops

FOLDER = pathlib.Path(ops.__file__).parent


def test_stubs_cover_everything_public():
    tree = ast.parse((FOLDER / "_core.pyi").read_text())
    typed = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for name in ops.__all__:
        assert hasattr(ops, name)
        if getattr(ops, name).__module__.endswith("_core"):
            assert name in typed, f"{name} has no stub"
            assert getattr(ops, name).__doc__, f"{name} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            assert all(a.annotation for a in arguments if a.arg != "self"), f"{node.name} is not fully typed"
            assert node.returns is not None, f"{node.name} is not fully typed"
    assert (FOLDER / "py.typed").exists()


def test_every_operator_takes_out_and_context():
    tree = ast.parse((FOLDER / "_core.pyi").read_text())
    operators = [f for f in tree.body if isinstance(f, ast.FunctionDef) and ast.unparse(f.returns).startswith("ArrayT")]
    assert operators
    for operator in operators:
        names = {a.arg for a in [*operator.args.args, *operator.args.kwonlyargs]}
        # A conversion on the caller's thread.
        needed = {"out"} if operator.name == "dequantise" else {"out", "context"}
        assert needed <= names, operator.name


def test_one_library():
    assert len(list(FOLDER.glob("*ops_transformer*.so*"))) == 1


def test_importing_needs_numpy_at_most():
    code = "import sys; before = set(sys.modules); import ops_transformer; print(*sorted(m.split('.')[0] for m in set(sys.modules) - before))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    foreign = set(output.split()) - set(sys.stdlib_module_names) - {"ops_transformer", "numpy"}
    assert not foreign


def test_command():
    if not (FOLDER / "ops-transformer").exists():
        pytest.skip("built without the command")
    script = pathlib.Path(sys.executable).parent / "ops-transformer"
    result = subprocess.run([script, "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and "generate" in result.stdout
