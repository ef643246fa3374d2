"""What is learnt and how: one spine, and one file for each algorithm.

The spine collects rollouts, walks a batch in minibatches, averages gradients and maps members; an
algorithm says how to act, what to aim at and what to minimise. All of it is traced: nothing here
reads a file, a clock or a command line.
"""
