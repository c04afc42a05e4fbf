# mypy: ignore-errors
"""Runs inside a host: calls probes as their JSON arguments say and prints the outcomes.

Arguments: pairs of a probe's name and its options as JSON. Needs the agent on the path.
"""

import json
import sys
import time

from fleetmem.agent.declare import find
from fleetmem.agent.model import Trouble

answers = {}
for name, options in zip(sys.argv[1::2], sys.argv[2::2]):  # noqa: B905
    before = time.process_time()
    chunks = []
    arguments = json.loads(options)
    if name == "gpu.wait":
        arguments["emit"] = chunks.append
    try:
        outcome, reason, code, reading = "ok", None, None, find(name).func(**arguments)
    except Trouble as trouble:
        outcome, reason, reading = trouble.outcome, trouble.reason, trouble.reading
        code = trouble.code
    answers[name] = {
        "outcome": outcome,
        "reason": reason,
        "code": code,
        "reading": reading,
        "chunks": chunks,
        "cpu_seconds": time.process_time() - before,
    }
print(json.dumps(answers))
