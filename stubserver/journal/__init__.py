"""What was asked, what was answered, and why."""
