"""SingularityCE and SingularityPro, which run SIF files; build arguments came with 4.0."""

from __future__ import annotations

from launcher.engines.sif import SifEngine

ENGINE = SifEngine("singularity", least=(4, 0))
