"""Speed as ratios in one run against what a user would pick instead. ``make bench``.

Nothing here is a test: a busy machine changes the figures, so each contender is run in turns
and the best of its runs counts.
"""
