"""More than one device: sharding, pipeline stages and the cross-stage cache, on torch.distributed."""
