"""TLS from files. With an authority configured both sides must show a certificate it signed."""

from __future__ import annotations

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
        """Read anew for each connection, so that a renewed certificate needs no restart."""
        return grpc.dynamic_ssl_server_credentials(
            self._server_files(), self._server_files, self.ca is not None
        )

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
