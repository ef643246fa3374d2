"""The spine that every algorithm shares, and one file for each algorithm.

The spine collects rollouts, runs epochs of minibatches, averages gradients and vmaps members. An
algorithm defines acting, targets and loss. All of this is traced: nothing here reads a file, a
clock or the command line.
"""
