"""Lab 5: KL estimators."""
