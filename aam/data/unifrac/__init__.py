"""UniFrac and Faith PD of samples, from the phylogeny of their ASVs."""
