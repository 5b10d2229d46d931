"""The format of script files: its schema, what is made of it, and its mistakes."""
