"""PyTorch models: TorchScript, mobile and exported programs, unconverted modules."""
