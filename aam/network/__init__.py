"""The network: everything that needs PyTorch. The study imports it only through `aam.wings`."""
