"""Generated nnScaler plans with the runtime's rules as the judge."""
