"""GPUClaimParameters: strict decoding, defaults and validation in one place."""
