"""The families that ship, a file each: how one random task is drafted. Leaves out building and checking a
suite (tasks.suite).
"""
