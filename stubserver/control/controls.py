"""What a test can do to a running server: to what it serves, to its faults, its journal and its cassette."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stubserver.engine.model import Model
from stubserver.faults.active import ActiveFaults
from stubserver.faults.fault import Fault
from stubserver.serving.dialect import Dialect
from stubserver.serving.state import ServerState

if TYPE_CHECKING:  # each is loaded where there is one
    from stubserver.journal.journal import Journal
    from stubserver.playback.player import Player

LoadModels = Callable[[Any], tuple[Sequence[Model], Sequence[Fault]]]
"""A script, in any form that create_app takes, → its models, and the faults of the server. Raises ConfigError."""


class Controls:
    """Made once by create_app; `app.state.server` is it. journal, player: None if there is none."""

    def __init__(
        self,
        dialect: Dialect,
        served: ServerState,
        faults: ActiveFaults,
        journal: Journal | None,
        player: Player | None,
        load_models: LoadModels,
    ) -> None:
        self.dialect = dialect
        self.served = served
        self.faults = faults
        self.journal = journal
        self.player = player
        self._load_models = load_models

    def load(self, script: Any) -> None:
        """Serve this script in place of the present one, until the next `reset`. Raises ConfigError."""
        models, faults = self._load_models(script)
        self.served.serve(models)
        self.faults.use(faults)

    def reset(self) -> None:
        """As at start: the scripts, the faults, the counters, the seeds, the cassette; and nothing in the journal."""
        self.served.reset()
        self.faults.reset()
        if self.journal is not None:
            self.journal.clear()
        if self.player is not None:
            self.player.rewind()
