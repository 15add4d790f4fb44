//! The types, codes and functions of AscendCL, as `acl/acl_rt.h` declares them.
#![allow(clippy::doc_markdown, reason = "the name of an interface")]

use std::ffi::{c_int, c_uint, c_void};

use xsched_interpose::Handle;

use crate::hooks::functions;

/// `aclError`.
pub(crate) type Code = c_int;
/// `aclrtStream`. Null is the default stream of the current context.
pub(crate) type Stream = Handle;
/// `aclrtContext`.
pub(crate) type Context = Handle;
/// `aclrtEvent`.
pub(crate) type Event = Handle;

pub(crate) const SUCCESS: Code = 0;
/// `ACL_ERROR_UNINITIALIZE`.
pub(crate) const UNINITIALIZED: Code = 100_001;
/// `ACL_EVENT_RECORDED_STATUS_COMPLETE`.
pub(crate) const RECORDED: c_int = 1;
/// `ACL_EVENT_STATUS_COMPLETE` and `ACL_STREAM_STATUS_COMPLETE`.
pub(crate) const COMPLETE: c_int = 0;
/// `ACL_STREAM_PERSISTENT`, `ACL_STREAM_CPU_SCHEDULE` and `ACL_STREAM_DEVICE_USE_ONLY`: the work of such a stream becomes part of a model
/// or is launched by the device.
pub(crate) const NOT_LAUNCHED_BY_PROGRAM: c_uint = 0x4 | 0x10 | 0x20;

functions! {
    library super::LIBRARY;

    fn aclrtGetCurrentContext(*mut Context) -> Code = CURRENT_CONTEXT;
    fn aclrtSetCurrentContext(Context) -> Code = SET_CONTEXT;
    fn aclrtGetDevice(*mut i32) -> Code = CURRENT_DEVICE;
    fn aclrtGetLogicDevIdByUserDevId(i32, *mut i32) -> Code = LOGICAL_DEVICE;
    fn aclrtGetPhyDevIdByLogicDevId(i32, *mut i32) -> Code = PHYSICAL_DEVICE;
    fn aclrtStreamGetFlags(Stream, *mut c_uint) -> Code = STREAM_FLAGS;
    fn aclrtSynchronizeStream(Stream) -> Code = SYNCHRONIZE;
    fn aclrtCreateEvent(*mut Event) -> Code = CREATE_EVENT;
    fn aclrtRecordEvent(Event, Stream) -> Code = RECORD_EVENT;
    fn aclrtQueryEventStatus(Event, *mut c_int) -> Code = QUERY_EVENT;
    fn aclrtDestroyEvent(Event) -> Code = DESTROY_EVENT;
    fn aclmdlRICaptureGetInfo(Stream, *mut c_int, *mut *mut c_void) -> Code = CAPTURE_INFO;
}
