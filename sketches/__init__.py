"""What can be computed and how: ops, targets, rules, sketches, schedules and their source code."""
