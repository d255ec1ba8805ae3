"""Consumer groups: members, rebalances and committed offsets over `__consumer_offsets`."""
