"""Evaluation: folds, metrics, scores with intervals and tests, ensemble and calibration."""
