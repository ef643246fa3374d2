"""Chips: plan and compile a run, also for those that are not here, and estimate its speed."""
