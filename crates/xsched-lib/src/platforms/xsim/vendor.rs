//! The functions and types of `xsim.h`.

use xsched_interpose::Handle;

use crate::hooks::functions;

/// `xsim_result`.
pub(crate) type Code = i32;
/// `xsim_device_t`.
pub(crate) type Device = Handle;
/// `xsim_queue_t`.
pub(crate) type Queue = Handle;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const NOT_READY: Code = 2;
pub(crate) const UNKNOWN: Code = 999;

functions! {
    library super::LIBRARY;

    fn xsim_queue_device(Queue, *mut u64) -> Code = DEVICE;
    fn xsim_queue_levels(Queue, *mut u64) -> Code = LEVELS;
    fn xsim_queue_mark(Queue, *mut u64) -> Code = MARK;
    fn xsim_queue_progress(Queue, *mut u64, *mut u64) -> Code = PROGRESS;
    fn xsim_queue_wait(Queue, u64, u64) -> Code = WAIT;
    fn xsim_query(Queue) -> Code = QUERY;
    fn xsim_synchronize(Queue) -> Code = SYNCHRONIZE;
    fn xsim_queue_preempt(Queue, u32) -> Code = PREEMPT;
    fn xsim_queue_restore(Queue) -> Code = RESTORE;
}
