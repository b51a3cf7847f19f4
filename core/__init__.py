"""Code that every package shares: errors, jobs with their events, files, and the protocols Host and Engine."""
