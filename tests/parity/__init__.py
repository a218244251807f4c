"""Each sampler and operator against a second implementation: plain NumPy in float64, diffusers, deepinv."""
