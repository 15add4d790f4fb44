//! libxsim.so: the simulated device behind a small C interface, as a vendor would ship one.
