//! What programs and the scheduler share.
