"""InferenceFleet: its models, conditions, names and the CRD generated from them. Pure."""
