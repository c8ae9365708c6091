"""`aam memory factory`: the predicted memory of a training step of any network."""

from __future__ import annotations

from aam.contract.options.commands.memory import MemoryFactory
from aam.performance.memory_factory import factory_memory
from aam.performance.memory_report import show_step


def run(options: MemoryFactory) -> None:
    """Print the memory of a step, and the GPUs on which it fits.

    Raises:
        UsageError: the factory cannot be imported, or returns something else.
    """
    show_step(factory_memory(options), f"A step of {options.factory}", options.gpu)
