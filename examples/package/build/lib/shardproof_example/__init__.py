"""An operator and a graph format for Shardproof; see `operators` and `reader`."""
