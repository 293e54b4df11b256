"""What the recipes share: arguments, schedules, logging, evaluation, saved parameters."""
