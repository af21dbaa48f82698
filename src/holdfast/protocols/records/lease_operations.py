"""What a holder can do with its lease besides releasing it."""

from __future__ import annotations

import contextlib

from ...core.arguments import Spec
from ...core.deadlines import RENEW_AFTER, lease_deadline
from ...core.effects import (
    Nonce,
    Now,
)
from ...errors import NotHeld
from ...rules.requests import (
    Adopt,
    Done,
    Downgrade,
    Export,
    Gone,
    Granted,
    Release,
    Renew,
    Reply,
    SetValue,
    Withdraw,
)
from ..client_state import CleanupTask, ClientState, LeaseState
from .acquisition import lease_of
from .releases import clean_up
from .retry import loss_reason, refusal_error, retry_until_deadline, unexpected_reply_error

__all__ = ["adopt", "downgrade", "export", "extend", "set_value"]


async def extend(client_state: ClientState, state: LeaseState, ttl: float) -> None:
    """Renew now, and from now on with this ttl. Never shortens what is granted."""
    sent = await Now()
    reply, _ = await retry_until_deadline(client_state, state.name, Renew(state.nonce, ttl))
    now = await Now()
    _check_held(client_state, state, reply, now)
    state.ttl = ttl
    state.extend(lease_deadline(sent - _age(reply), ttl), now)
    state.renew_at = min(state.renew_at, sent + ttl * RENEW_AFTER) if state.renews else state.renew_at
    client_state.retime(state)


async def set_value(client_state: ClientState, state: LeaseState, data: bytes, retention: float) -> None:
    reply, _ = await retry_until_deadline(client_state, state.name, SetValue(state.nonce, data, retention))
    _check_held(client_state, state, reply, await Now())


async def downgrade(client_state: ClientState, state: LeaseState) -> LeaseState:
    """Replace the write lease by a read lease in one step."""
    nonce = await Nonce()
    sent = await Now()
    state.is_releasing = True
    try:
        reply, _ = await retry_until_deadline(client_state, state.name, Downgrade(state.nonce, nonce))
        if isinstance(reply, Granted):
            return _downgraded(client_state, state, nonce, reply, sent)
    except BaseException:
        # The downgrade may have been applied, and no caller will get the read lease.
        if state.successor is None:
            await clean_up(
                client_state, state.name, state.ttl, Release(nonce, client_state.linger), wait=True
            )
        raise
    finally:
        state.is_releasing = False
        client_state.wake_timer("timer")
        client_state.wake_timer("keeper")  # its last round skipped this lease
    _check_held(client_state, state, reply, await Now())
    raise unexpected_reply_error(state.name, reply)


def _downgraded(
    client_state: ClientState, state: LeaseState, nonce: str, grant: Granted, sent: float
) -> LeaseState:
    counts_from = sent - grant.age
    reader = state.successor = LeaseState(
        state.name,
        state.kind,
        "read",
        nonce,
        state.owner,
        grant.token,
        grant.peers,
        state.metadata,
        counts_from,
        grant.ttl,
        lease_deadline(counts_from, grant.ttl),
        state.held_until,
        state.renews,
        state.grace,
    )
    reader.caller = state.caller
    state.end("downgraded")
    client_state.drop(state)
    if state.uncertain:
        refuse = Withdraw(state.nonce, client_state.linger)
        client_state.queue_cleanup(
            CleanupTask(state.name, refuse, f"{state.nonce}/job", give_up_at=sent + client_state.linger)
        )
    client_state.add(reader)
    return reader


async def export(client_state: ClientState, state: LeaseState) -> str:
    """Leave the lease to be adopted by another process within one ttl. Returns the secret it must present.

    The engine stores a hash of the secret. A repeated export, after one that failed, has a new secret, and
    only the latest is valid.
    """
    from ...core.handover import seal_of  # only here and below: few programs hand a lease over

    secret = await Nonce()
    reply, _ = await retry_until_deadline(client_state, state.name, Export(state.nonce, seal_of(secret)))
    _check_held(client_state, state, reply, await Now())
    state.end("exported")
    client_state.drop(state)
    return secret


async def adopt(client_state: ClientState, spec: Spec, nonce: str, owner: str, secret: str) -> LeaseState:
    """Take over a lease that another process exported, with its token."""
    from ...core.handover import seal_of

    client_state.check_timers_run()
    seal = seal_of(secret)
    if nonce in client_state.leases:
        # The engine would accept a repeated request; but of two leases of one grant, neither would
        # notice the release of the other.
        twice = NotHeld(f"the exported lease of {spec.name!r} was adopted by this client already")
        twice.name = spec.name
        raise twice
    sent = await Now()
    try:
        reply, _ = await retry_until_deadline(
            client_state, spec.name, Adopt(nonce, client_state.client, owner, seal, spec.renew)
        )
    except BaseException:
        # The adoption may have been applied, and no caller will get the lease: let it expire.
        undo = Adopt(nonce, client_state.client, owner, seal, renews=False)
        await clean_up(client_state, spec.name, spec.ttl, undo, wait=True)
        raise
    if isinstance(reply, Gone):
        detail = f": {reply.note}" if reply.note else " or was not adopted in time"
        error = NotHeld(
            f"the exported lease of {spec.name!r} cannot be adopted: it is {reply.reason}{detail}"
        )
        error.name = spec.name
        raise error
    if not isinstance(reply, Granted):
        raise refusal_error(spec, reply)
    for task in list(client_state.cleanup_tasks):
        if isinstance(task.request, Adopt) and task.request.nonce == nonce:
            with contextlib.suppress(ValueError):
                client_state.cleanup_tasks.remove(task)  # left by an earlier adoption that failed
    state = lease_of(spec, nonce, owner, reply, sent)
    state.uncertain = True  # the first holder may have left requests in flight
    client_state.add(state)
    return state


def _age(reply: Reply) -> float:
    return reply.age if isinstance(reply, Done | Granted) else 0.0


def _check_held(client_state: ClientState, state: LeaseState, reply: Reply, now: float) -> None:
    if isinstance(reply, Done) and state.loss(now) is None:
        return
    if isinstance(reply, Gone):
        state.mark_lost(loss_reason(reply), reply.note)
        client_state.wake_timer("timer")
    if state.reason is None:
        raise unexpected_reply_error(state.name, reply)
    raise state.lost_error()
