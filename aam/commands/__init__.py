"""Commands of `aam`: one module with a function `run(options)` for each."""
