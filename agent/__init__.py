"""The part that runs on a host: Python >= 3.8, standard library and the carried pynvml only.

Probes measure, actions change, nothing here judges.
"""
