"""Programs as handlers."""

from __future__ import annotations

from jobmesh import App

app = App("commands")
app.command("cmd-upper", ["tr", "a-z", "A-Z"], content_type="text/plain")
