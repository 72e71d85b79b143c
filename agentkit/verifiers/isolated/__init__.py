"""What runs outside this process: a server that forks a child a connection, and the checks."""
