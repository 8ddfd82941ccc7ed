"""What a run looks like to people: progress, tables, plots and the report."""
