"""Training: diffusion pre-training, then consistency tuning; resumable bit for bit."""
