"""Secrets in command lines, masked where they are read: no reading, plan or screen has them.

Masked are values of flags and variables whose names say so (``--api-key``, ``HF_TOKEN=``),
passwords in URLs, what follows ``Bearer``, and words that look like a vendor's key.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

MASK = b"***"
_HINTS = (
    b"key",
    b"token",
    b"passw",
    b"passphrase",
    b"secret",
    b"credential",
    b"auth",
    b"://",
    b"bearer",
)
_NAMES = (
    b"api-key",
    b"apikey",
    b"api-keys",
    b"access-key",
    b"secret-key",
    b"private-key",
    b"auth-key",
    b"password",
    b"passwd",
    b"passphrase",
    b"secret",
    b"secrets",
    b"credential",
    b"credentials",
    b"authorization",
)
_NOT_SECRET = frozenset(
    b"max min pad eos bos unk stop image audio video special mask sep cls num new next first last "
    b"start end per prompt think reasoning vision".split()
)
"""Words before "token" that make it a piece of text."""
_PREFIXES = (
    b"sk-",
    b"hf_",
    b"ghp_",
    b"gho_",
    b"github_pat_",
    b"glpat-",
    b"nvapi-",
    b"xoxb-",
    b"AKIA",
)
_PREFIXED_BYTES = 16
_QUOTES = b"'\""


def masked(data: bytes) -> bytes:
    """A command line as /proc has it, arguments ended by NUL, with its secrets masked."""
    lower = data.lower()
    if not any(hint in lower for hint in _HINTS) and not any(one in data for one in _PREFIXES):
        return data
    found: List[bytes] = []
    state = _State()
    for argument in data.split(b"\0"):
        if state.takes(argument):
            found.append(MASK)
        else:
            inner = _State() if b" " in argument else state
            found.append(b" ".join(inner.word(word) for word in argument.split(b" ")))
    return b"\0".join(found)


class _State:
    """What the words before say of the next one."""

    __slots__ = ("many", "next", "quote")

    def __init__(self) -> None:
        self.next = False
        self.many = False
        self.quote = b""

    def takes(self, word: bytes) -> bool:
        """Whether *word* is a secret by what stands before it."""
        if not self.next or not word:
            return False
        if word.startswith(b"-") and not self.quote:
            self.next = False
            return False
        self.next = self.many
        return True

    def word(self, word: bytes) -> bytes:
        """One word of a line, masked where it is a secret or has one."""
        if self.quote:
            if word.endswith(self.quote):
                self.quote = b""
            return MASK
        if self.takes(word):
            if word.lower() in (b"bearer", b"basic"):
                self.next = True
                return word
            first = word[:1]
            if first in _QUOTES and not (len(word) > 1 and word.endswith(first)):
                self.quote = first
            return MASK
        name, separator, value = word.partition(b"=")
        if separator and value and secret(name):
            first = value[:1]
            if first in _QUOTES and not (len(value) > 1 and value.endswith(first)):
                self.quote = first
            return name + b"=" + MASK
        if name.startswith(b"-") or word.endswith((b":", b'":', b"':")):
            self.next = not separator and secret(name.rstrip(b":"))
            self.many = self.next and b"key" in name
            if self.next:
                return word
        elif word.strip(_QUOTES).lower() == b"bearer":
            self.next, self.many = True, False
            return word
        return _prefixed(_url(word))


def secret(name: bytes) -> bool:
    """Whether the value of the flag or variable *name* is a secret, by its name."""
    plain = name.strip(_QUOTES + b"{,").lstrip(b"-").lower().replace(b"_", b"-").replace(b".", b"-")
    if any(plain == one or plain.endswith(b"-" + one) for one in _NAMES):
        return True
    before, _, last = plain.rpartition(b"-")
    return last == b"token" and before.rpartition(b"-")[2] not in _NOT_SECRET


def _url(word: bytes) -> bytes:
    """The password of a URL's user; a user without one may be a token."""
    scheme, mark, rest = word.partition(b"://")
    authority, slash, path = rest.partition(b"/")
    user, at, host = authority.rpartition(b"@")
    if not mark or not at:
        return word
    user = user.partition(b":")[0] + b":" + MASK if b":" in user else MASK
    return scheme + mark + user + at + host + slash + path


def _prefixed(word: bytes) -> bytes:
    """Vendors' keys by how they begin, anywhere in a word."""
    for prefix in _PREFIXES:
        at = word.find(prefix)
        while at >= 0:
            end = at + len(prefix)
            while end < len(word) and (word[end : end + 1].isalnum() or word[end] in b"-_"):
                end += 1
            own = not at or not word[at - 1 : at].isalnum()
            if own and end - at >= _PREFIXED_BYTES:
                word = word[:at] + MASK + word[end:]
                end = at + len(MASK)
            at = word.find(prefix, end)
    return word
