"""What a person looks at: figures, widgets and the run card.

Leaves out every number in them: evaluation and diagnostics compute those.
"""
