"""Pipelines of `aam train` and `aam search`: a study in memory and settings in, a result out."""
