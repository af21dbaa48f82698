"""The text form of a lease that is handed to another process."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

from ..errors import InvalidArgument
from ..model import Kind, Mode
from .arguments import Spec, check_grace, check_limit, check_name, check_ttl

__all__ = [
    "Handover",
    "check_fields",
    "check_kind_and_mode",
    "check_nonce",
    "check_secret",
    "parse",
    "seal_of",
]

PREFIX = "holdfast1:"
SEALED = "exported/"
KINDS_AND_MODES = (
    ("lock", "exclusive"),
    ("rwlock", "read"),
    ("rwlock", "write"),
    ("semaphore", "permit"),
)

NONCE: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{1,32}", re.ASCII)
"""The id of a client, then what names the attempt (see ``runtime/identity.py``)."""

TEXT_CHARACTERS_MAX: Final = 16_384
"""More than the longest name in the longest namespace needs, each character escaped."""

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Handover:
    """What the adopter needs. The secret is the capability: any process with the text may adopt.

    Everything else is in the record and visible by inspection. Of the secret the record has only a hash.
    """

    namespace: str
    name: str
    kind: str
    mode: str
    nonce: str
    secret: str = field(repr=False)
    ttl: float
    grace: float
    limit: int = 0

    @classmethod
    def of(cls, state: Any, namespace: str, secret: str) -> Handover:
        return cls(namespace, state.name, state.kind, state.mode, state.nonce, secret, state.ttl, state.grace)

    def text(self) -> str:
        return PREFIX + base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode("ascii")

    def spec(self, namespace: str) -> Spec:
        if namespace != self.namespace:
            raise InvalidArgument(
                f"this lease was exported from namespace {self.namespace!r}; this client's is {namespace!r}"
            )
        return Spec(
            name=self.name,
            kind=cast(Kind, self.kind),
            mode=cast(Mode, self.mode),
            ttl=self.ttl,
            timeout=None,
            fair=True,
            renew=True,
            max_hold=None,
            grace=self.grace,
            if_lost="raise",
        )


def parse(text: str) -> Handover:
    """The text that ``lease.export()`` returned, checked as a whole before any I/O."""
    if not isinstance(text, str) or not text.lstrip().startswith(PREFIX):
        raise InvalidArgument("this is not an exported lease: pass the text that lease.export() returned")
    text = text.strip()  # a file or a shell may have added a line end
    try:
        given = Handover(**_fields(text))
        check_fields(given)
        if given.text() != text:
            raise InvalidArgument("it is not written as lease.export() writes it")
    except (ValueError, TypeError, RecursionError) as error:
        detail = f": {error}" if isinstance(error, InvalidArgument) else ""
        raise InvalidArgument(
            f"the exported lease is damaged{detail}; pass the text that lease.export() returned, unchanged"
        ) from None
    return given


def _fields(text: str) -> dict[str, Any]:
    """The fields in the text: one flat object of bounded size."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidArgument(f"it has {len(text)} characters, at most {TEXT_CHARACTERS_MAX} are possible")
    data = base64.b64decode(text[len(PREFIX) :].encode("ascii"), altchars=b"-_", validate=True)
    payload = data.decode("utf-8")
    outline = _QUOTED.sub("", payload)
    if "[" in outline or outline.count("{") != 1:
        raise InvalidArgument("it is not one flat object")
    fields = json.loads(payload, parse_constant=_refuse_constant)
    if not isinstance(fields, dict):
        raise InvalidArgument("it is not one flat object")
    return fields


def _refuse_constant(name: str) -> None:
    raise InvalidArgument(f"{name} is not a number of seconds")


def check_fields(given: Handover) -> None:
    """Check the type, characters and range of every field. No message shows the secret."""
    check_name(given.namespace, "namespace")
    check_name(given.name)
    check_grace(given.grace, check_ttl(given.ttl))
    check_kind_and_mode(given.kind, given.mode)
    check_nonce(given.nonce)
    check_secret(given.secret)
    if not isinstance(given.limit, int) or isinstance(given.limit, bool) or given.limit < 0:
        raise InvalidArgument("its limit is not a number of permits")
    if given.limit:
        check_limit(given.limit)


def check_kind_and_mode(kind: object, mode: object) -> None:
    if not isinstance(kind, str) or not isinstance(mode, str) or (kind, mode) not in KINDS_AND_MODES:
        raise InvalidArgument("its kind and mode do not exist")


def check_nonce(nonce: object) -> None:
    """Engines build keys and paths from a nonce. Every driver writes it in this one form, on every engine."""
    if not isinstance(nonce, str) or NONCE.fullmatch(nonce) is None:
        raise InvalidArgument("its nonce is not that of a grant")


def check_secret(secret: object) -> None:
    """A secret is minted as a nonce is; no other client knows its random part."""
    if not isinstance(secret, str) or NONCE.fullmatch(secret) is None:
        raise InvalidArgument("its secret was not minted by lease.export()")


def seal_of(secret: str) -> str:
    """What the engine stores of a secret: a hash, which is visible by inspection and adopts nothing."""
    import hashlib  # only here: it loads OpenSSL, and few programs hand a lease over

    return SEALED + hashlib.sha256(secret.encode()).hexdigest()
