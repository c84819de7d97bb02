# SPDX-License-Identifier: Apache-2.0
"""The script entry point: becomes the command that the package carries."""

import os
import sys


def main() -> None:
    command = os.path.join(os.path.dirname(__file__), "ops-transformer")
    if not os.path.exists(command):
        sys.exit("ops-transformer: this package was built without the command")
    os.execv(command, [command, *sys.argv[1:]])
