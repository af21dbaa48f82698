"""What attempts are called: unique, and not to be guessed by one who knows the client's id."""

from __future__ import annotations

from holdfast.runtime.identity import attempt_names, new_client_id


def test_the_random_part_of_every_attempt_is_new() -> None:
    client = new_client_id()
    new_nonce = attempt_names(client)
    nonces = [new_nonce() for _ in range(1000)]
    parts = [nonce.rpartition("-") for nonce in nonces]
    assert {head for head, _, _ in parts} == {client}  # engines find the client of a nonce so
    assert len({random for _, _, random in parts}) == len(nonces)
    assert all(len(bytes.fromhex(random)) == 16 for _, _, random in parts)


def test_the_random_part_is_never_drawn_from_what_went_before() -> None:
    client = new_client_id()
    assert attempt_names(client)() != attempt_names(client)()
