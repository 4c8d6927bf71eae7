"""Silent bugs that were reported of training stacks, as small programs, beside fixed twins."""
