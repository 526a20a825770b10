"""A small, complete paged engine for LLM serving, to learn from."""
