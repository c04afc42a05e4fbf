"""``fleetmem gate``: is the memory of these GPUs free, and if not, will it be?

It runs where the engine will start, as the user who will start it, inside fleetmem or as one
standalone file. It judges on the host, which nothing else of the agent does: whoever waits in
front of a start has no controller to ask.
"""
