"""The checks of ``holdfast doctor`` for ZooKeeper: the state of each server, and the rights of the user."""

from __future__ import annotations

import logging
import secrets
import socket
import ssl
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from ...errors import EngineUnavailable
from ..findings import Finding, clock, connection, fail, ok, unknown, warn
from .config import Config

__all__ = ["diagnose"]

OLDEST_VERSION: Final = (3, 5, 1)
ALL: Final = 31
"""Every permission at once."""


def diagnose(config: Config, io_timeout: float) -> list[Finding]:
    config.check_files()
    findings: list[Finding] = []
    for host in config.hosts:
        findings += _server(config, host, io_timeout, f" {host}" if len(config.hosts) > 1 else "")
    if all(each.status == "fail" and each.topic.startswith("connection") for each in findings):
        raise EngineUnavailable(f"ZooKeeper: {findings[0].text}")
    return [*findings, *_ensemble(config, io_timeout)]


def _server(config: Config, host: str, io_timeout: float, label: str) -> list[Finding]:
    encrypted = bool(config.more.get("use_ssl"))
    is_verified = encrypted and bool(config.more.get("verify_certs"))
    is_verified = is_verified and bool(config.more.get("check_hostname"))
    name, _, port = host.rpartition(":")
    name = name.strip("[]")
    found = [connection(f"connection{label}", name, encrypted, is_verified, "write tls=true&ca=…")]
    try:
        answer = _four_letters(config, name, int(port), io_timeout)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or error
        return [fail(f"connection{label}", f"{host} cannot be reached ({reason})")]
    facts = dict(row.split(": ", 1) for row in answer.splitlines() if ": " in row)
    mode = facts.get("Mode")
    if mode is None:
        found.append(unknown(f"mode{label}", "unknown: allow it (4lw.commands.whitelist=srvr)"))
    elif mode == "standalone":
        found.append(
            warn(
                f"mode{label}",
                "standalone: while it is down nothing is granted; an ensemble tolerates failures",
            )
        )
    elif mode == "read-only":
        found.append(fail(f"mode{label}", "read-only: it has lost the others, and grants nothing"))
    else:
        found.append(ok(f"mode{label}", mode))
    return found


def _four_letters(config: Config, host: str, port: int, io_timeout: float) -> str:
    with socket.create_connection((host, port), io_timeout) as plain:
        stream: socket.socket = plain
        if config.more.get("use_ssl"):
            context = ssl.create_default_context(cafile=config.more.get("ca"))
            if not config.more.get("verify_certs"):
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            elif not config.more.get("check_hostname"):
                context.check_hostname = False
            if config.more.get("certfile"):
                context.load_cert_chain(config.more["certfile"], config.more.get("keyfile"))
            stream = context.wrap_socket(plain, server_hostname=host)
        try:
            stream.sendall(b"srvr")
            answer = b""
            while chunk := stream.recv(4096):
                answer += chunk
            return answer.decode("utf-8", "replace")
        finally:
            if stream is not plain:
                stream.close()


def _ensemble(config: Config, io_timeout: float) -> list[Finding]:
    client = KazooClient(
        hosts=",".join(config.hosts),
        timeout=max(io_timeout, 4.0),
        auth_data=list(config.auth),
        logger=_silent(),
        **{name: value for name, value in config.more.items() if value is not None},
    )
    try:
        client.start(timeout=io_timeout)
        return [_version(client), *_rights(client, config)]
    except (KazooTimeoutError, KazooException) as error:
        raise EngineUnavailable(
            f"ZooKeeper at {','.join(config.hosts)} grants no session ({error or 'no answer in time'})"
        ) from error
    finally:
        client.stop()
        client.close()


def _silent() -> logging.Logger:
    """Failures become findings, not log entries."""
    logger = logging.getLogger("holdfast.doctor.kazoo")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger


def _version(client: Any) -> Finding:
    version = client.server_version()
    text = ".".join(map(str, version))
    if tuple(version) < OLDEST_VERSION:
        return fail("version", f"ZooKeeper {text}; 3.5.1 or later is needed")
    return ok("version", f"ZooKeeper {text}")


def _rights(client: Any, config: Config) -> list[Finding]:
    """Creating an ephemeral node shows the right to do so, and the leader's clock."""
    if client.exists(config.prefix) is None:
        return [
            unknown("rights", f"{config.prefix} does not exist yet: the first lock creates it"),
            unknown("clock", "known once a node can be created; no grant depends on it"),
        ]
    path = f"{config.prefix}/doctor-{secrets.token_hex(8)}"

    def ask() -> float:
        client.create(path, ephemeral=True)
        made = client.exists(path)
        client.delete(path)
        return float(made.ctime) / 1000.0

    try:
        found = [clock("clock", ask, precision=0.0005)]
        entries, _ = client.get_acls(config.prefix)
    except NoAuthError:
        return [fail("rights", f"missing on {config.prefix}: create, read, write, delete (setAcl)")]
    is_open = any(each.id.scheme == "world" and each.perms & ALL == ALL for each in entries)
    if is_open:
        found.append(warn("rights", f"everyone may do anything below {config.prefix}: set an ACL there"))
    else:
        found.append(ok("rights", f"as needed; the ACL keeps others out of {config.prefix}"))
    return found
