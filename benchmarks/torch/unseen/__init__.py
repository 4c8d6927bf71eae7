"""Programs that no part of Shardproof was written for: each was written before it was run."""
