"""GPUs shared by many claims through MPS (NVIDIA Multi-Process Service): one control daemon per GPU."""
