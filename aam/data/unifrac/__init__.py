"""UniFrac and Faith PD, from the phylogeny of a table's ASVs."""
