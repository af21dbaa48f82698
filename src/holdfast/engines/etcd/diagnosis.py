"""The checks of ``holdfast doctor`` for etcd, member by member, over each member's JSON gateway."""

from __future__ import annotations

import base64
import email.utils
import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final

from ...errors import EngineUnavailable
from ..findings import Finding, clock, connection, fail, ok, unknown, warn
from .config import Config

__all__ = ["diagnose"]

OLDEST_VERSION: Final = (3, 4)
FIRST_STEADY: Final = {(3, 4): 28, (3, 5): 10}
"""Since these patches a leader that was paused and resumed does not end living sessions."""


def diagnose(config: Config, io_timeout: float) -> list[Finding]:
    findings: list[Finding] = []
    failures: list[str] = []
    asked: Member | None = None
    for endpoint in config.endpoints:
        member = Member(config, endpoint, io_timeout)
        label = f" {endpoint}" if len(config.endpoints) > 1 else ""
        try:
            findings += member.findings(label)
            asked = asked or member
        except (OSError, ssl.SSLError, http.client.HTTPException) as error:
            failures.append(f"{endpoint}: {getattr(error, 'strerror', None) or error}")
            findings.append(fail(f"connection{label}", f"cannot be reached ({failures[-1]})"))
    if asked is None:
        raise EngineUnavailable(f"etcd cannot be reached ({failures[0]})")
    return [*findings, *asked.cluster_findings()]


class Member:
    """One member, asked over HTTP."""

    def __init__(self, config: Config, endpoint: str, io_timeout: float) -> None:
        self._config = config
        host, _, port = endpoint.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._seconds = io_timeout
        self._context = config.tls_context()
        if self._context is not None:
            self._context.set_alpn_protocols(["http/1.1"])
        self._token = ""

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any, str]:
        """The status, the document, and the server's date."""
        plain_connection: http.client.HTTPConnection
        if self._context is None:
            plain_connection = http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)
        else:
            plain_connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._seconds, context=self._context
            )
        try:
            headers = {"Authorization": self._token} if self._token else {}
            plain_connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = plain_connection.getresponse()
            text = response.read(1 << 20)
            try:
                document = json.loads(text)
            except ValueError:
                document = {}
            return response.status, document, response.headers.get("Date", "")
        finally:
            plain_connection.close()

    def _call(self, path: str) -> dict[str, Any] | None:
        """Call a method over the gateway; None: not available."""
        status, document, _ = self._ask("POST", f"/v3/{path}", {})
        return document if status == 200 and isinstance(document, dict) else None

    def findings(self, label: str) -> list[Finding]:
        encrypted = self._context is not None
        # TLS to etcd is always verified: there is no option to turn that off.
        found = [connection(f"connection{label}", self._host, encrypted, encrypted, "write tls=true&ca=…")]
        _, answer, date = self._ask("GET", "/version")
        found += [self._clock(f"clock{label}", date), _version(f"version{label}", answer)]
        _, health, _ = self._ask("GET", "/health")
        if isinstance(health, dict) and str(health.get("health", "")).lower() == "true":
            found.append(ok(f"health{label}", "has a leader, and answers"))
        else:
            found.append(fail(f"health{label}", "no leader, or it does not answer: nothing is granted here"))
        return found

    def _clock(self, topic: str, date: str) -> Finding:
        if not date:
            return unknown(topic, "the member sends no date; no grant depends on it")

        def ask() -> float:
            return email.utils.parsedate_to_datetime(self._ask("GET", "/version")[2]).timestamp()

        return clock(topic, ask, precision=0.5)

    def cluster_findings(self) -> list[Finding]:
        found = [self._rights()]
        status = self._call("maintenance/status")
        members = self._call("cluster/member/list")
        alarms = self._call("maintenance/alarm")
        if members is None or not members.get("members"):
            found.append(
                unknown("members", "unknown: the gateway is off (--enable-grpc-gateway), or no right")
            )
        else:
            voters = [each for each in members["members"] if not each.get("isLearner")]
            found.append(_size(len(voters)))
        if alarms is None:
            found.append(unknown("alarms", "unknown: the gateway is off, or this user has no right to ask"))
        elif listed := [str(each.get("alarm")) for each in alarms.get("alarms", ())]:
            found.append(fail("alarms", f"{', '.join(listed)}: nothing is granted until it is cleared"))
        else:
            found.append(ok("alarms", "none"))
        if status is not None and "dbSize" in status:
            found.append(
                ok("size", f"{int(status['dbSize']) / 1_000_000:.1f} MB; the quota is 2 GB by default")
            )
        return found

    def _rights(self) -> Finding:
        user = self._config.user
        if user is not None:
            body = {"name": user, "password": self._config.password}
            status, answer, _ = self._ask("POST", "/v3/auth/authenticate", body)
            if status == 404:
                return unknown("rights", "unknown: the gateway is off (--enable-grpc-gateway)")
            if "not enabled" in str(answer):
                return warn(
                    "rights", "a password is given, but authentication is off: every client may do anything"
                )
            if status != 200 or not answer.get("token"):
                return fail("rights", f"{user} cannot log in: look at the name and the password")
            self._token = str(answer["token"])
        status, answer, _ = self._ask("POST", "/v3/kv/txn", self._write_without_effect())
        if "user name is empty" in str(answer):
            return fail("rights", "the cluster requires a user: write etcd://user:password@host")
        if "permission denied" in str(answer):
            prefix = self._config.prefix
            return fail(
                "rights", f"missing: etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/"
            )
        if status != 200:
            return unknown("rights", "unknown: the gateway is off (--enable-grpc-gateway)")
        if user == "root":
            return warn("rights", "all, as root: make a user with rights on the prefix alone")
        if user is not None or self._config.cert is not None:
            return ok("rights", f"{user or 'the owner of this certificate'} may read and write the prefix")
        return warn("rights", "authentication is off: every client that reaches the port may do anything")

    def _write_without_effect(self) -> dict[str, Any]:
        """etcd checks permissions before compares, and this compare never succeeds: no version is
        negative."""
        key = base64.b64encode(f"{self._config.prefix}/doctor".encode()).decode()
        return {
            "compare": [{"key": key, "target": "VERSION", "result": "EQUAL", "version": "-1"}],
            "success": [{"requestPut": {"key": key, "value": ""}}],
        }


def _version(topic: str, answer: Any) -> Finding:
    text = str(answer.get("etcdserver", "")) if isinstance(answer, dict) else ""
    parts = tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())
    if not parts:
        return unknown(topic, "the member reports no version")
    if parts < OLDEST_VERSION:
        return fail(topic, f"etcd {text}; 3.4 or later is needed")
    if len(parts) == 3 and parts[2] < FIRST_STEADY.get(parts[:2], 0):
        steady = FIRST_STEADY[parts[:2]]
        return warn(
            topic,
            f"etcd {text}: a leader that was paused and resumed can end living sessions; "
            f"{parts[0]}.{parts[1]}.{steady} does not",
        )
    return ok(topic, f"etcd {text}")


def _size(count: int) -> Finding:
    if count == 1:
        return warn("members", "1: while it is down nothing is granted; three tolerate the loss of one")
    if count % 2 == 0:
        return warn("members", f"{count}: an even number tolerates no more failures than one less")
    return ok("members", f"{count}: tolerates the loss of {count // 2}")
