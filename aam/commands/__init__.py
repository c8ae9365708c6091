"""Commands of `aam`: a function `run_COMMAND(options)` for each, in a module of its subject."""

MODULES = {
    "acceptance": "acceptance",
    "check": "stack",
    "compare": "results",
    "embed": "models",
    "evaluate": "results",
    "example": "studies",
    "export": "models",
    "golden": "stack",
    "importance": "models",
    "inspect": "studies",
    "memory": "performance",
    "predict": "models",
    "prepare": "studies",
    "pretrain": "training",
    "profile": "profile",
    "report": "results",
    "search": "training",
    "train": "training",
    "tune": "performance",
    "unifrac": "unifrac",
}
"""First word of a command -> module of this package."""
