"""The launcher: reads what is asked for, decides how to run it, and becomes that program.

It needs neither torch nor anything else of the model, and of `aam` it knows only `aam.options`.
"""
