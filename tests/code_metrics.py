"""`make metrics`: sizes of functions and files against our budgets. Prints; fails nothing.

Lines of a function are counted without its docstring, as in the budgets of CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

ROOTS = ("services", "sdk/jobmesh", "deploy/localmesh", "tests")
LONG_FUNCTION, LONG_FILE = 50, 350


def functions(path: Path) -> list[tuple[int, str]]:
    """The length of every function of a file, and where it stands."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if (doc := ast.get_docstring(node, clean=False)) is not None:
                lines -= doc.count("\n") + 1
            found.append((lines, f"{path}:{node.lineno} {node.name}"))
    return found


def main() -> None:
    for root in ROOTS:
        files = sorted(Path(root).rglob("*.py"))
        lengths = [length for path in files for length in functions(path)]
        sizes = [(len(path.read_text().splitlines()), str(path)) for path in files]
        told = [length for length, _ in lengths]
        sys.stdout.write(
            f"{root:18} {len(files):4} files, p90 {_p90([s for s, _ in sizes]):4.0f} lines;"
            f" {len(told):5} functions, median {statistics.median(told):3.0f},"
            f" p90 {_p90(told):3.0f}\n"
        )
        for length, where in sorted(lengths, reverse=True):
            if length > LONG_FUNCTION:
                sys.stdout.write(f"    {length:4} lines  {where}\n")
        for size, where in sorted(sizes, reverse=True):
            if size > LONG_FILE:
                sys.stdout.write(f"    {size:4} lines  {where}\n")


def _p90(values: list[int]) -> float:
    return statistics.quantiles(values, n=10)[-1]


if __name__ == "__main__":
    main()
