//! A simulated accelerator in real time that several processes can share.
