//! `xsched demo`: a foreground and a background on one device, without and with XSched.

pub(crate) mod gpu;
pub(crate) mod html;
pub(crate) mod report;
pub(crate) mod scene;
pub(crate) mod worker;
