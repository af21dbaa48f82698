"""A lease on its way to another process, as text."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from ..errors import InvalidArgument
from ..model import Kind, Mode
from .arguments import Spec, check_grace, check_name, check_ttl

__all__ = ["Handover", "parse", "seal_of"]

PREFIX = "holdfast1:"
SEALED = "exported/"
LONGEST_SECRET = 200
KINDS_AND_MODES = (
    ("lock", "exclusive"),
    ("rwlock", "read"),
    ("rwlock", "write"),
    ("semaphore", "permit"),
)


@dataclass(frozen=True, slots=True)
class Handover:
    """What the adopter needs to know. The secret is the capability: whoever has the text may adopt.

    All else stands in the record, for everybody who may inspect it; of the secret only its seal does.
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
    """The text that ``lease.export()`` gave, checked."""
    if not isinstance(text, str) or not text.startswith(PREFIX):
        raise InvalidArgument("this is not an exported lease: pass the text that lease.export() returned")
    try:
        fields = json.loads(base64.urlsafe_b64decode(text[len(PREFIX) :].encode("ascii")))
        given = Handover(**fields)
        check_name(given.name)
        check_grace(given.grace, check_ttl(given.ttl))
        well_formed = (
            isinstance(given.namespace, str)
            and isinstance(given.nonce, str)
            and _is_secret(given.secret)
            and (given.kind, given.mode) in KINDS_AND_MODES
        )
    except (ValueError, TypeError, UnicodeError) as error:
        raise InvalidArgument("the exported lease is damaged: pass the text unchanged") from error
    if not well_formed:
        raise InvalidArgument("the exported lease is damaged: pass the text unchanged")
    return given


def seal_of(secret: str) -> str:
    """What the engine keeps of a secret. A record tells it to those who may look: it adopts nothing."""
    return SEALED + hashlib.sha256(secret.encode()).hexdigest()


def _is_secret(secret: object) -> bool:
    """Whether an exported lease can have had it: the drivers' names for attempts are printable ASCII."""
    return isinstance(secret, str) and 0 < len(secret) <= LONGEST_SECRET and secret.isascii()
