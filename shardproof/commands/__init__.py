"""Commands of the command line, one module each; `shardproof.cli` registers them."""
