"""TLS from files. With an authority configured both sides must show a certificate it signed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from services.mesh.config import ServiceConfig
from services.mesh.runtime import StartupError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: our certificate chain, its key, and the authority of our peers."""

    cert: str
    key: str
    ca: str | None = None

    @classmethod
    def from_config(cls, config: ServiceConfig) -> TlsFiles | None:
        if config.tls_cert_file is None or config.tls_key_file is None:
            return None
        return cls(config.tls_cert_file, config.tls_key_file, config.tls_ca_file)

    def server_credentials(self) -> grpc.ServerCredentials:
        """For gRPC's own server, which asks for them anew with each connection."""
        return grpc.dynamic_ssl_server_credentials(
            self._server_files(), self._server_files, self.ca is not None
        )

    def server_context(self) -> ssl.SSLContext:
        """Made anew for each connection, so that a renewed certificate needs no restart."""
        for path in filter(None, (self.key, self.cert, self.ca)):
            _read(path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        try:
            # Without one, the password of a key that has one would be asked of the terminal.
            context.load_cert_chain(self.cert, self.key, password="")
            if self.ca:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            files = ", ".join(filter(None, (self.cert, self.key, self.ca)))
            reason = error.reason or "not PEM"
            raise StartupError(
                f"not a certificate, its key and an authority: {files} ({reason})"
            ) from error
        return context

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Read once: gRPC offers no reload on this side; a channel opened later sees new files."""
        ca = _read(self.ca) if self.ca else None
        return grpc.ssl_channel_credentials(ca, _read(self.key), _read(self.cert))

    def _server_files(self) -> grpc.ServerCertificateConfiguration:
        ca = _read(self.ca) if self.ca else None
        return grpc.ssl_server_certificate_configuration([(_read(self.key), _read(self.cert))], ca)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from error
