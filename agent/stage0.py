# Stage 0: finds, receives and verifies the parts of the agent, then runs the guard.
#
#   argv: boot token parts cache look
#   token: A:B   parts: NAME:SHA256:SIZE,…   cache: 1 or 0   look: "look" for a newer Python
#
# boot.py runs it, and gives it CORE: the compiled core where the host had one, else None. It
# answers with one line, BA first (so that an echoed command line is no answer), then either
# an error word or the parts it needs. Needed parts follow on stdin, each as 4 bytes of length
# and that many zlib bytes. Parts are checked by SHA-256 over what was read, and kept in a 0700
# folder of the effective user; where nothing can be kept it runs from memory. An interpreter
# older than 3.8 must be able to parse this file. (Comments are stripped before sending.)
import os
import sys


def main(argv, core):
    half = argv[0].split(":")
    token = half[1] + half[0]
    if sys.version_info < (3, 8):
        old = "%d.%d.%d" % sys.version_info[:3]
        test = ["-I", "-S", "-c", "import sys;sys.exit(sys.version_info < (3, 8))"]
        for name in ["python3.%d" % n for n in range(15, 7, -1)] if argv[3] == "look" else []:
            if os.spawnvp(os.P_WAIT, name, [name, *test]) == 0:
                os.execvp(name, [name, "-I", "-S", "-c", globals()["WRAP"], sys.argv[1], *argv])
        say(token, "python_too_old " + old + " " + sys.executable)
        return 69
    try:
        for name in ("_ctypes", "fcntl", "marshal", "pwd", "resource", "select", "zlib"):
            __import__(name)
        try:
            __import__("_json")
        except ImportError:
            __import__("json")
        import marshal
        import pwd
        import zlib
        from _signal import alarm
    except ImportError as error:
        say(token, "python_incomplete " + str(error).replace("\n", " ") + " " + sys.executable)
        return 69
    folder = cache_folder(pwd) if argv[2] == "1" else None
    tag = sys.implementation.cache_tag or "x"
    parts, need = {}, []
    wanted = [part.split(":") for part in argv[1].split(",")]
    for name, digest, size in wanted:
        file = name + "-" + digest
        if name == "more":
            parts[name] = later(folder, file, tag, digest, int(size), marshal)
        else:
            parts[name] = (name == "core" and core) or from_cache(
                folder, file, tag, digest, marshal
            )
        if parts[name] is None:
            need.append(name)
    alarm(20)  # no guard watches yet: a peer that falls silent here ends this process
    say(token, "ok %d.%d.%d " % sys.version_info[:3] + ",".join(need))
    for name, digest, size in wanted:
        if name in need:
            parts[name] = receive(
                folder, name + "-" + digest, tag, digest, int(size), marshal, zlib
            )
            alarm(20)
    sys.meta_path.insert(0, Loader(parts, marshal))
    from fleetmem.agent import guard

    return guard.main(not need)


def say(token, text):
    os.write(1, (token + " " + text + "\n").encode())


def sha256(data):
    try:
        from _sha256 import sha256 as new
    except ImportError:
        try:
            from _sha2 import sha256 as new
        except ImportError:
            from hashlib import sha256 as new
    return new(data).hexdigest()


def cache_folder(pwd):
    try:
        folder = pwd.getpwuid(os.geteuid()).pw_dir
        for name in (".cache", "fleetmem"):
            folder = os.path.join(folder, name)
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                pass
        found = os.lstat(folder)
        if found.st_uid == os.geteuid() and found.st_mode & 0o170077 == 0o040000:
            return folder
    except (OSError, KeyError):
        pass
    return None


def slurp(path):
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        data = b""
        while len(data) < size:
            more = os.read(handle, size - len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(handle)


def from_cache(folder, name, tag, digest, marshal):
    if folder is None:
        return None
    path = os.path.join(folder, name)
    try:
        data = slurp(path + "." + tag)
        if sha256(data[64:]).encode() == data[:64]:
            return marshal.loads(data[64:])
    except (OSError, ValueError, EOFError, TypeError):
        pass
    try:
        source = slurp(path)
    except OSError:
        return None
    if sha256(source) != digest:
        return None
    return compiled(source, folder, name, tag, marshal)


def later(folder, name, tag, digest, size, marshal):
    # what few processes load is checked where it is loaded; here only its size is
    try:
        if folder is None or os.stat(os.path.join(folder, name)).st_size != size:
            return None
    except OSError:
        return None

    def load():
        codes = from_cache(folder, name, tag, digest, marshal)
        if codes is None:
            os.unlink(os.path.join(folder, name))
            raise ImportError("cached part " + name + " was damaged; it is gone now, run again")
        return codes

    return load


def receive(folder, name, tag, digest, size, marshal, zlib):
    length = int.from_bytes(exactly(4), "big")
    if length > size + 1024:
        raise SystemExit("fleetmem: a part is longer than it said")
    try:
        source = zlib.decompressobj().decompress(exactly(length), size)
    except zlib.error:
        source = b""
    if len(source) != size or sha256(source) != digest:
        raise SystemExit("fleetmem: a part does not match its SHA-256")
    keep(folder, name, source)
    return compiled(source, folder, name, tag, marshal)


def exactly(size):
    data = b""
    while len(data) < size:
        more = os.read(0, min(size - len(data), 65536))
        if not more:
            raise SystemExit("fleetmem: the connection ended while a part was sent")
        data += more
    return data


def compiled(source, folder, name, tag, marshal):
    head, _, rest = source.partition(b"\n\n")
    codes, at = {}, 0
    for line in head.decode().split("\n"):
        module, _, size = line.rpartition(" ")
        text = rest[at : at + int(size)]
        at += int(size)
        codes[module] = marshal.dumps(compile(text, "<fleetmem>/" + module, "exec", 0, True))
    data = marshal.dumps(codes)
    keep(folder, name + "." + tag, sha256(data).encode() + data)
    return codes


def forget(folder, name):
    # parts of other versions that nobody has loaded for a month
    import time

    kind, _, rest = name.partition("-")
    for other in os.listdir(folder):
        path = os.path.join(folder, other)
        another = other.startswith(kind + "-") and rest.split(".")[0] not in other
        if another and time.time() - os.stat(path).st_atime > 30 * 86400:
            os.unlink(path)


def keep(folder, name, data):
    if folder is None:
        return
    temporary = os.path.join(folder, "." + os.urandom(8).hex())
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
        finally:
            os.close(handle)
        os.rename(temporary, os.path.join(folder, name))
        forget(folder, name)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass


class Loader:
    def __init__(self, parts, marshal):
        self.codes = {}
        self.later = []
        for codes in parts.values():
            if callable(codes):
                self.later.append(codes)
            else:
                self.codes.update(codes)
        self.marshal = marshal

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(("fleetmem", "pynvml")):
            return None
        key = name + ".__init__"
        while self.later and key not in self.codes and name not in self.codes:
            self.codes.update(self.later.pop()())
        if key in self.codes or name in self.codes:
            from _frozen_importlib import ModuleSpec

            return ModuleSpec(name, self, is_package=key in self.codes)  # type: ignore[arg-type]
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        code = self.codes.get(name + ".__init__") or self.codes[name]
        exec(self.marshal.loads(code), module.__dict__)


os._exit(main(sys.argv[2:], globals()["CORE"]))  # taking an interpreter apart costs a host 1 ms
