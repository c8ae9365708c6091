"""Python interface: load models, scikit-learn estimators, UniFrac of tables in memory.

The names are attributes of `aam` itself (`aam.load`, `aam.AAMRegressor`), imported on first use.
`aam.contract.errors` has the errors. Messages go to the logger `aam`, warnings to the module
`warnings` as `AamWarning`; long work shows its progress on standard error or in the notebook cell.
"""
