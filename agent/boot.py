# The very first code on a host: it travels on the command line of every contact, so it is
# small and does one thing. Where the host has the agent's core, compiled and whole, it runs
# stage0 out of that; else it asks for stage0 ("boot") and reads it from stdin. Like stage0 it
# must parse on interpreters older than 3.8. (Comments are stripped before sending.)
#
#   argv: itself token parts cache look
import gc
import os
import sys

gc.set_threshold(100000)  # what a survey leaves to collect is less than looking for it costs
WRAP = "import sys,zlib,binascii as b;exec(zlib.decompress(b.a2b_base64(sys.argv[1])))"


def cached():
    try:
        import marshal
        import pwd

        try:
            from _sha256 import sha256
        except ImportError:
            from _sha2 import sha256
        folder = os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".cache", "fleetmem")
        found = os.lstat(folder)
        private = found.st_uid == os.geteuid() and found.st_mode & 0o170077 == 0o040000
        if sys.argv[4] != "1" or not private:
            return None
        name = "core-" + sys.argv[3].split(":")[1] + "." + sys.implementation.cache_tag
        handle = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        size = os.fstat(handle).st_size
        data = b""
        while len(data) < size:
            more = os.read(handle, size - len(data))
            if not more:
                break
            data += more
        os.close(handle)
        body = memoryview(data)[64:]
        if sha256(body).hexdigest().encode() == data[:64]:
            codes = marshal.loads(body)
            return codes, marshal.loads(codes["fleetmem.agent.stage0"])
    except Exception:  # noqa: BLE001  whatever is wrong with it, it can be sent again
        pass
    return None


def sent():
    import zlib
    from _signal import alarm

    half = sys.argv[2].split(":")
    os.write(1, (half[1] + half[0] + " boot\n").encode())
    alarm(20)
    data, size = b"", 4
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            raise SystemExit("fleetmem: the connection ended while the agent was sent")
        data += more
        if len(data) == 4 and size == 4:
            size += int.from_bytes(data, "big")
    return None, zlib.decompress(data[4:])


CORE, code = cached() or sent()
exec(code)
