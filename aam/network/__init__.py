"""The network: what needs PyTorch. The study reaches it through `aam.wings` alone."""
