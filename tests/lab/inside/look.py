# mypy: ignore-errors
"""Runs inside a host: prints as JSON what /proc shows of the pids given as arguments."""

import json
import os
import sys


def text(path):
    """Content of a file of /proc, "" where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def node_number(path):
    """[major, minor, inode's device, inode] behind a magic link, None for other files."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not found.st_rdev:
        return None
    return [os.major(found.st_rdev), os.minor(found.st_rdev), found.st_dev, found.st_ino]


def files(directory):
    """{"/dev/nvidia0": count} and the device numbers of an fd directory."""
    names, numbers = {}, []
    try:
        entries = os.listdir(directory)
    except OSError:
        return names, numbers
    for entry in entries:
        path = os.path.join(directory, entry)
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if "nvidia" in target:
            names[target] = names.get(target, 0) + 1
            number = node_number(path)
            if number not in numbers:
                numbers.append(number)
    return names, numbers


def mappings(pid):
    """{"/dev/nvidiactl": [count, bytes]}."""
    found = {}
    for line in text(f"/proc/{pid}/maps").splitlines():
        fields = line.split(None, 5)
        if len(fields) > 5 and "nvidia" in fields[5]:
            start, end = (int(part, 16) for part in fields[0].split("-"))
            row = found.setdefault(fields[5], [0, 0])
            row[0] += 1
            row[1] += end - start
    return found


def process(pid):
    """One process; None where there is none."""
    stat = text(f"/proc/{pid}/stat")
    if not stat:
        return None
    rest = stat.rpartition(")")[2].split()
    tasks = os.listdir(f"/proc/{pid}/task")
    by_task = {}
    for task in tasks:
        for name, count in files(f"/proc/{pid}/task/{task}/fd")[0].items():
            by_task[name] = max(count, by_task.get(name, 0))
    names, numbers = files(f"/proc/{pid}/fd")
    status = dict(line.split(":\t", 1) for line in text(f"/proc/{pid}/status").splitlines())
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        exe = None
    return {
        "state": rest[0],
        "ppid": int(rest[1]),
        "sid": int(rest[3]),
        "start": int(rest[19]),
        "uid": int(status["Uid"].split()[0]),
        "comm": text(f"/proc/{pid}/comm").strip(),
        "title": text(f"/proc/{pid}/cmdline").rstrip("\0").split("\0"),
        "tasks": len(tasks),
        "exe": exe,
        "fds": names,
        "numbers": numbers,
        "task_fds": by_task,
        "maps": mappings(pid),
        "pipes": pipes(pid),
        "shmem_kib": int(status.get("RssShmem", "0 kB").split()[0]),
    }


def pipes(pid):
    """Names like pipe:[7] and socket:[8] of the files beyond 0-2."""
    found = []
    for entry in os.listdir(f"/proc/{pid}/fd") if os.path.exists(f"/proc/{pid}/fd") else []:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if int(entry) > 2 and target.startswith(("pipe:", "socket:")):
            found.append(target)
    return sorted(found)


print(json.dumps({pid: process(pid) for pid in sys.argv[1:]}))
