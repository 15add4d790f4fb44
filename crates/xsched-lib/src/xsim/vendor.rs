//! The vendor's functions, as `xsim.h` has them.

use std::ffi::c_void;

use xsched_interpose::Real;

/// `xsim_result`.
pub(crate) type Code = i32;
/// `xsim_device_t`.
pub(crate) type Device = *mut c_void;
/// `xsim_queue_t`.
pub(crate) type Queue = *mut c_void;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const NOT_READY: Code = 2;
pub(crate) const UNKNOWN: Code = 999;

type Ask = unsafe extern "C" fn(Queue, *mut u64) -> Code;
type Act = unsafe extern "C" fn(Queue) -> Code;

pub(crate) static DEVICE: Real<Ask> = Real::new(c"xsim_queue_device");
pub(crate) static LEVELS: Real<Ask> = Real::new(c"xsim_queue_levels");
pub(crate) static MARK: Real<Ask> = Real::new(c"xsim_queue_mark");
pub(crate) static PROGRESS: Real<unsafe extern "C" fn(Queue, *mut u64, *mut u64) -> Code> =
    Real::new(c"xsim_queue_progress");
pub(crate) static WAIT: Real<unsafe extern "C" fn(Queue, u64, u64) -> Code> = Real::new(c"xsim_queue_wait");
pub(crate) static SYNCHRONIZE: Real<Act> = Real::new(c"xsim_synchronize");
pub(crate) static PREEMPT: Real<unsafe extern "C" fn(Queue, u32) -> Code> = Real::new(c"xsim_queue_preempt");
pub(crate) static RESTORE: Real<Act> = Real::new(c"xsim_queue_restore");
