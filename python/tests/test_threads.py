# SPDX-License-Identifier: Apache-2.0
"""How many threads a fresh process takes, the package and the command alike: affinity, cgroup, environment, options."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from command import command_path

# NumPy may have threads of its own from the import on.
PACKAGE = """
import os, sys, numpy, ops_transformer as ops
tasks = lambda: len(os.listdir("/proc/self/task"))
before = tasks()
context = ops.Context(num_threads=int(sys.argv[1])) if sys.argv[1:] else ops.default_context()
x = numpy.ones((4096, 256), numpy.float32)
ops.fused_rmsnorm(x, x[0], context=context)
print(context.num_threads, 1 + tasks() - before)
"""
VARIABLE = "OPS_TRANSFORMER_NUM_THREADS"
two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU: nothing can limit it")


def environment(num_threads=None):
    cleared = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return cleared if num_threads is None else cleared | {VARIABLE: num_threads}


def package_threads(prefix, num_threads, variable):
    options = [] if num_threads is None else [str(num_threads)]
    command = [*prefix, sys.executable, "-c", PACKAGE, *options]
    done = subprocess.run(command, env=environment(variable), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))


def command_threads(prefix, num_threads, variable, model_path):
    options = [] if num_threads is None else ["--threads", str(num_threads)]
    explain = [*prefix, command_path(), "explain", "linear", "--shape", "1,16,32", "--json", *options]
    done = subprocess.run(explain, env=environment(variable), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # A chat that has answered waits for its next line, and its threads with it.
    chat = [*prefix, command_path(), "chat", "--model", model_path, "--max-tokens", "2", *options]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    with subprocess.Popen(chat, env=environment(variable), **pipes) as process:
        process.stdin.write("Hello\n")
        assert process.stdout.readline()
        used = len(os.listdir(f"/proc/{process.pid}/task"))
        process.stdin.close()
        assert process.wait(60) == 0
    return json.loads(done.stdout)["threads"], used


@pytest.fixture(params=["package", "command"])
def threads(request):
    """Calls with (prefix of the command line, num_threads, variable) give (threads reported, threads there)."""
    if request.param == "package":
        return lambda prefix=(), num_threads=None, variable=None: package_threads(prefix, num_threads, variable)
    model_path = request.getfixturevalue("model_path")
    return lambda prefix=(), num_threads=None, variable=None: command_threads(prefix, num_threads, variable, model_path)


@pytest.fixture
def group_of_one_cpu():
    """A prefix that starts a command in a cgroup, of version 1 or 2, with a quota of one CPU's time."""
    version1 = [root for root in map(pathlib.Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")) if root.is_dir()]
    group = (version1 or [pathlib.Path("/sys/fs/cgroup")])[0] / f"ops_transformer_test_{os.getpid()}"
    quota = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"} if version1 else {"cpu.max": "100000 100000"}
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        for name, value in quota.items():
            try:
                (group / name).write_text(value)
            except OSError as error:
                pytest.skip(f"no quota can be set here: {error}")
        yield ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', group]
    finally:
        group.rmdir()


@two_cpus
def test_affinity_limits(threads):
    cpu = min(os.sched_getaffinity(0))
    assert threads(["taskset", "-c", str(cpu)]) == (1, 1)


@two_cpus
def test_quota_limits(threads, group_of_one_cpu):
    assert threads(group_of_one_cpu) == (1, 1)


def test_the_variable_and_the_option_decide(threads):
    """Above the CPUs there are, too; the option has the last word."""
    assert threads(variable="3") == (3, 3)
    assert threads(variable="3", num_threads=1) == (1, 1)
    assert threads(variable="1", num_threads=3) == (3, 3)


@pytest.mark.parametrize("value", ["0", "-1", "1025", "two", "2.5", " 2", "99999999999999999999"])
def test_other_values_of_the_variable_are_errors(value):
    message = f"{VARIABLE} is '{value}', must be a number from 1 to 1024"
    run = dict(env=environment(value), capture_output=True, text=True, timeout=120)
    done = subprocess.run([sys.executable, "-c", "import ops_transformer as ops; ops.default_context()"], **run)
    assert done.returncode == 1 and f"ValueError: {message}" in done.stderr
    done = subprocess.run([command_path(), "explain", "linear", "--shape", "1,16,32"], **run)
    assert done.returncode == 2 and message in done.stderr and not done.stdout
