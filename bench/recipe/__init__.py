"""What the recipes bench runs, how it measures, and its report."""
