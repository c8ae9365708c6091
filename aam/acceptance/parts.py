"""Registry of the parts of the acceptance, in their order."""

from __future__ import annotations

from aam.acceptance import correctness, host, interruption, memory, ranks, speed
from aam.acceptance.part import AcceptancePart

# fmt: off
PARTS: dict[str, AcceptancePart] = {
    "host": AcceptancePart("GPUs, driver, image, modes and clocks", 120,
                 host.measure_host, host.evaluate_host, host.HOST),
    "launch": AcceptancePart("overhead, mounts and visible devices", 60,
                   host.measure_launch, host.evaluate_launch, host.LAUNCH),
    "check": AcceptancePart("attention backends and precisions on every GPU", 900,
                  correctness.measure_check, correctness.evaluate_check, correctness.CHECK),
    "golden": AcceptancePart("a small training, compared with the CPU and other images", 300,
                   correctness.measure_golden, correctness.evaluate_golden, correctness.GOLDEN),
    "attention": AcceptancePart("time and memory of attention by backend", 600,
                      correctness.measure_attention, correctness.evaluate_attention,
                      correctness.ATTENTION),
    "memory": AcceptancePart("predicted and measured peaks", 900,
                   memory.measure_memory, memory.evaluate_memory, memory.MEMORY),
    "speed": AcceptancePart("samples per second, and their share of the peak", 1200,
                  speed.measure_speed, speed.evaluate_speed, speed.SPEED),
    "unified": AcceptancePart("copies between the memories of host and APU", 120,
                    memory.measure_unified, memory.evaluate_unified, memory.UNIFIED),
    "profile": AcceptancePart("longest kernels and what limits a run", 600,
                    speed.measure_profile, speed.evaluate_profile, speed.PROFILE),
    "ranks": AcceptancePart("several processes on this node", 1200,
                  ranks.measure_ranks, ranks.evaluate_ranks, ranks.RANKS),
    "interruption": AcceptancePart("stop, resume, and a killed rank", 900,
                         interruption.measure_interruption, interruption.evaluate_interruption,
                         interruption.INTERRUPTION),
    "settings": AcceptancePart("faster settings that train the same network", 2400,
                     speed.measure_settings, speed.evaluate_settings, speed.SETTINGS),
    "nodes": AcceptancePart("several processes on several nodes", 1200,
                  ranks.measure_nodes, ranks.evaluate_nodes, ranks.TOGETHER),
}
# fmt: on
"""Name of a part -> what it measures; `PartName` of the options has the same names."""

SEVERAL_RANKS = ("nodes",)
"""Parts that several ranks measure together; one process measures the others."""
