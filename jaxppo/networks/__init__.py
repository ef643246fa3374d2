"""Input layers, torsos, memories and heads, composed into an actor-critic."""
