"""This kit against its peer in one run on one machine, and its alarms on simulated runs: docs/results.md, docs/alarms.md."""
