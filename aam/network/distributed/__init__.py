"""Distributed training: ranks, collectives, strategies, state dicts, heartbeats, stop requests."""
