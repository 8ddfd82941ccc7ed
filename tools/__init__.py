"""What looks after the house: its plan, and runs that must not change."""
