"""How often does the policy solve a task? Pass rate and pass@k, base against trained."""
