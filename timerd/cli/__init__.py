"""The `timerd` command: what is typed, checked and printed. What a command does stands elsewhere."""
