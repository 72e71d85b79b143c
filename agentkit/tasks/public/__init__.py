"""Public data sets as suites: rows from the hub or a local file, and GAIA. Leaves out their distribution:
nothing is shipped.
"""
