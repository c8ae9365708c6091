"""Decisions: from the words of a command line to a plan. Pure, nothing here touches the host."""
