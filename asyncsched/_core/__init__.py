"""The scheduler as a state machine: no event loop, no threads, no arrays, no clock."""
