"""Does the policy learn to call its tools, and is calling why it earns more? The study of asking, for tools."""
