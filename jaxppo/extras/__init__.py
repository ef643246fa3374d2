"""What can be done with runs and policies without the core knowing.

The report, films, plans for chips, and the search for hyperparameters, which trains many runs. The
core imports nothing from here but in methods that say so, such as `result.film`.
"""
