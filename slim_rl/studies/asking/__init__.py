"""Does a policy learn to ask, and is asking why it earns more? For games with a partner that knows what it needs."""
