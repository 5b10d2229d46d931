"""How the server behaves: the settings, and the profiles of servers with other habits."""
