"""Rules: what is known of an operation's result before anything is computed. A file for each theme."""
