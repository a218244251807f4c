"""Networks: the preconditioned consistency model, how a measurement enters it, and where weights are kept."""
