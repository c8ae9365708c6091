"""The plugin framework, `qiime2` or its successor `rachis`: the one that q2-types uses."""

import importlib

from q2_types.feature_table import FeatureTable

framework = importlib.import_module(type(FeatureTable).__module__.partition(".")[0])
plugin = importlib.import_module(f"{framework.__name__}.plugin")
