//! The types, codes and functions of VPI, as `vpi/Stream.h`, `vpi/Event.h` and `vpi/Context.h` declare them.

use std::ffi::c_int;

use xsched_interpose::Handle;

use crate::hooks::functions;

/// `VPIStatus`.
pub(crate) type Code = c_int;
/// `VPIStream`.
pub(crate) type Stream = Handle;
/// `VPIEvent`.
pub(crate) type Event = Handle;
/// `VPIContext`.
pub(crate) type Context = Handle;

pub(crate) const SUCCESS: Code = 0;
/// `VPI_ERROR_INTERNAL`.
pub(crate) const INTERNAL: Code = 12;
/// `VPI_EVENT_STATE_SIGNALED`.
pub(crate) const SIGNALED: c_int = 1;
/// `VPI_BACKEND_CPU`.
pub(crate) const CPU: u32 = 1;

functions! {
    library super::LIBRARY;

    fn vpiContextGetCurrent(*mut Context) -> Code = CURRENT_CONTEXT;
    fn vpiContextPush(Context) -> Code = PUSH_CONTEXT;
    fn vpiContextPop(*mut Context) -> Code = POP_CONTEXT;
    fn vpiStreamSync(Stream) -> Code = SYNCHRONIZE;
    fn vpiEventCreate(u64, *mut Event) -> Code = CREATE_EVENT;
    fn vpiEventRecord(Event, Stream) -> Code = RECORD_EVENT;
    fn vpiEventQuery(Event, *mut c_int) -> Code = QUERY_EVENT;
    fn vpiEventDestroy(Event) -> () = DESTROY_EVENT;
}
