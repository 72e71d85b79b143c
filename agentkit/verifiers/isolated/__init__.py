"""What runs outside this process: a server that forks one child a connection, and the checks that those
children do.
"""
