"""Apptainer, which runs SIF files; build arguments came with 1.2 (its change log)."""

from __future__ import annotations

from launcher.engines.sif import SifEngine

ENGINE = SifEngine("apptainer", least=(1, 2))
