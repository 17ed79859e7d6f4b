"""The asyncio side of a scheduler: what drives the state machine, waits for it, and finds out why nothing moves."""
