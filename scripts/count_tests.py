#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the results in the folders named and ends with the line `N passed, N failed[, N skipped]`.

A folder holds ctest.junit with one case a program, an .xml that GoogleTest wrote for each program that is one of its
own, or pytest.junit. A program that died before it could write counts as one failed test. Checks that are no test
program are given as numbers and count one each.
"""

import argparse
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count_cases(file: pathlib.Path) -> tuple[int, int, int]:
    passed = failed = skipped = 0
    for case in ElementTree.parse(file).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def count_ctest(folder: pathlib.Path) -> tuple[int, int, int]:
    totals = [0, 0, 0]
    for program in ElementTree.parse(folder / "ctest.junit").iter("testcase"):
        own = folder / f"{program.get('name')}_test.xml"
        died = program.find("failure") is not None
        counts = count_cases(own) if own.exists() else (0 if died else 1, 0, 0)
        if died and counts[1] == 0:
            counts = (counts[0], 1, counts[2])
        totals = [total + count for total, count in zip(totals, counts)]
    return tuple(totals)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passed-checks", type=int, default=0)
    parser.add_argument("--failed-checks", type=int, default=0)
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    totals = [arguments.passed_checks, arguments.failed_checks, 0]
    for folder in arguments.folders:
        counts = (0, 1, 0)
        if (folder / "ctest.junit").exists():
            counts = count_ctest(folder)
        elif (folder / "pytest.junit").exists():
            counts = count_cases(folder / "pytest.junit")
        print("%-24s %6d passed %4d failed %4d skipped" % (folder.name, *counts))
        totals = [total + count for total, count in zip(totals, counts)]
    print("%d passed, %d failed" % tuple(totals[:2]) + (", %d skipped" % totals[2] if totals[2] else ""))
    return 1 if totals[1] or not totals[0] else 0


if __name__ == "__main__":
    sys.exit(main())
