"""The servers that are imitated, a room each."""
