"""etcd over its JSON gateway, past the mesh's own client: for faults, and for the dump."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

from localmesh.ports import LOOPBACK


class EtcdGateway:
    """One member."""

    def __init__(self, port: int) -> None:
        self._url = f"http://{LOOPBACK}:{port}/v3"

    def revoke_all(self) -> int:
        """Revoke every lease there is; how many."""
        leases = self._call("lease/leases").get("leases", [])
        return sum(self._revoked(lease["ID"]) for lease in leases)

    def compact(self) -> int:
        """Forget all revisions but the newest; which."""
        revision = int(self._call("kv/range", key=_text("x"))["header"]["revision"])
        self._call("kv/compaction", revision=revision)
        return revision

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with this."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self._call("kv/range", key=_text(prefix), range_end=_text(end), keys_only=True)
        return [base64.b64decode(item["key"]).decode() for item in found.get("kvs", [])]

    def leads(self) -> bool:
        """Whether this member is the leader."""
        told = self._call("maintenance/status")
        return bool(told.get("leader")) and told["leader"] == told["header"]["member_id"]

    def size(self) -> int:
        """Bytes of the database in use."""
        return int(self._call("maintenance/status")["dbSizeInUse"])

    def _revoked(self, lease_id: str) -> bool:
        """Revoke a lease; False if it has ended by itself meanwhile."""
        try:
            self._call("lease/revoke", ID=lease_id)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def _call(self, path: str, **fields: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._url}/{path}", json.dumps(fields).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            told: dict[str, Any] = json.load(answer)
        return told


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
