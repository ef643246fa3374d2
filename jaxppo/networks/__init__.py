"""Networks: input layers, torsos and heads, composed into an actor-critic."""
