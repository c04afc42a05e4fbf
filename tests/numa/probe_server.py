# mypy: ignore-errors
"""Runs inside the NUMA machine: one line of JSON in (name, options), one line out."""

import json
import sys
import time

from fleetmem.agent.declare import find
from fleetmem.agent.model import Trouble

for line in sys.stdin:
    name, options = json.loads(line)
    before = time.process_time()
    try:
        outcome, reason, reading = "ok", None, find(name).func(**options)
    except Trouble as trouble:
        outcome, reason, reading = trouble.outcome, trouble.reason, trouble.reading
    answer = {
        "outcome": outcome,
        "reason": reason,
        "reading": reading,
        "cpu_seconds": time.process_time() - before,
    }
    print(json.dumps(answer), flush=True)
