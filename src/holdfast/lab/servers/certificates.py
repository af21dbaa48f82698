"""Throw-away certificates for TLS on loopback, made by the ``openssl`` program."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from .errors import ServerFailed

__all__ = ["Certificates", "make_certificates"]

CONFIGURATION: Final = """\
[req]
distinguished_name = nobody
[nobody]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
"""Complete enough for Python 3.13, which enforces RFC 5280 strictly."""


class Certificates(NamedTuple):
    """Paths of PEM files: an authority, and a certificate that it signed for 127.0.0.1 and localhost."""

    authority: Path
    certificate: Path
    key: Path
    """The key of the certificate, which servers use and, if the server requires one, clients."""

    def client_context(self) -> ssl.SSLContext:
        """A client context that trusts the authority, checks the host name, and has a client certificate."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_certificates(folder: Path, openssl: str) -> Certificates:
    """Create the certificates in the folder, or return those that exist."""
    made = Certificates(folder / "authority.crt", folder / "server.crt", folder / "server.key")
    if all(path.exists() for path in made):
        return made
    configuration = folder / "openssl.cnf"
    configuration.write_text(CONFIGURATION)
    authority_key = str(folder / "authority.key")

    def request(section: str, subject: str, *rest: str) -> None:
        command = [openssl, "req", "-config", str(configuration), "-x509", "-days", "30", "-nodes"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        _run([*command, "-extensions", section, "-subj", subject, *rest])

    request("authority", "/CN=Holdfast lab", "-keyout", authority_key, "-out", str(made.authority))
    signed_by = ["-CA", str(made.authority), "-CAkey", authority_key]
    request("server", "/CN=localhost", *signed_by, "-keyout", str(made.key), "-out", str(made.certificate))
    return made


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerFailed(f"openssl did not make the certificates:\n{done.stderr}")
