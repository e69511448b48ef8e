"""Everything that changes something: the API server, the engines' limits, the fleet's status."""
