"""``python -m shardproof``."""

from shardproof.cli import main

if __name__ == "__main__":
    main(prog_name="shardproof")
