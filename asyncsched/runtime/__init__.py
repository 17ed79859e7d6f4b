"""The asyncio side of a scheduler: its state machine on an event loop, waiting, and why nothing moves."""
