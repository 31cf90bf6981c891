"""Why: the gap dimensions, with evidence and how sure."""
