"""Real clients of AMD's runtimes, run with and without XSched on the stand-ins for ROCr and the kernel driver."""
