"""``python -m benchmarks [NAME…]``: all benchmarks, or those named."""

from __future__ import annotations

import importlib
import os
import sys

NAMES = ("fanout", "agent", "command_line", "journal", "startup", "pagecache")


def main(names: list[str]) -> int:
    """Run and print; 1 where a bound was missed."""
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} before the start", flush=True)
    missed = 0
    for name in names or NAMES:
        if name not in NAMES:
            print(f"no benchmark {name!r}; there are {', '.join(NAMES)}", file=sys.stderr)
            return 2
        print(f"\n{name}", flush=True)
        for label, figure in importlib.import_module(f"benchmarks.{name}").main():
            missed += "MISSED" in figure
            print(f"  {label:66} {figure}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
