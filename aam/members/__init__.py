"""Members of an ensemble: models of several kinds that predict the same target."""
