"""What a trained policy or a finished run can do without the core knowing.

The report, films and the search for hyperparameters. The core imports nothing from here but in
methods that say so, such as `result.film`.
"""
