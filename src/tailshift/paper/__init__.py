"""The paper's tables and figures: its numbers, where ours come from, both together."""
