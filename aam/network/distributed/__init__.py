"""Distributed training: ranks, collectives, DDP and FSDP, heartbeats."""
