"""One call of ``propagate`` or ``edge_updater`` on a cut graph."""
