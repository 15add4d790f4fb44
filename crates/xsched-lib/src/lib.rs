//! libxsched.so: all hooks and the C interface in one library.
