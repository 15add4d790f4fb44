//! `libstandin_levelzero.so`: a driver that the real Level Zero loader loads, for machines without an Intel GPU or NPU.
//!
//! ```text
//!   program ──► libze_loader.so.1 ──► tables of this driver ──► a thread per queue ──► simulated device
//! ```
//! `ZE_ENABLE_ALT_DRIVERS` names it to the loader, and `XSIM_DEVICE` the file of the simulated device. Queues, immediate and regular
//! lists, events, fences, copies and fills work; kernels are those of `kernel.rs`. A table entry that is missing here is a function
//! that the loader reports as unsupported. `XSCHED_STANDIN_LEVELZERO_LACKS=fences` or `events` leaves out those functions.

mod device;
mod event;
mod kernel;
mod list;
mod memory;
mod object;
mod queue;

use std::ffi::{c_uint, c_void};

/// `ze_result_t`.
type Code = i32;

const SUCCESS: Code = 0;
const NOT_READY: Code = 1;
const DEVICE_LOST: Code = 0x7000_0001;
const OUT_OF_MEMORY: Code = 0x7000_0002;
const INVALID_ARGUMENT: Code = 0x7800_0004;
const INVALID_NULL_HANDLE: Code = 0x7800_0005;
const INVALID_KERNEL_NAME: Code = 0x7800_0011;

/// The result of a function as the loader expects it.
fn to_code(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

/// Exports functions that fill a table of the driver, by the positions of the entries in it. Later versions of the interface only
/// append to the tables.
macro_rules! tables {
    ( $( $get:ident $(lacks $feature:literal)? { $( $position:literal = $function:path ),* $(,)? } )* ) => { $(
        /// Fills a table.
        ///
        /// # Safety
        /// The table has room for the entries that are set; the loader allocated it.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name that the loader looks up")]
        pub(crate) unsafe extern "C" fn $get(_version: c_uint, table: *mut *const c_void) -> Code {
            $( if std::env::var_os("XSCHED_STANDIN_LEVELZERO_LACKS").is_some_and(|lacks| lacks == $feature) {
                return SUCCESS;
            } )?
            if table.is_null() {
                return INVALID_ARGUMENT;
            }
            // SAFETY: the caller guarantees the room.
            $( unsafe { table.add($position).write($function as *const c_void) }; )*
            SUCCESS
        }
    )* };
}

tables! {
    zeGetGlobalProcAddrTable { 0 = device::init }
    zeGetDriverProcAddrTable {
        0 = device::get_drivers, 1 = device::get_api_version, 2 = device::get_driver_properties, 4 = device::get_extensions,
    }
    zeGetDeviceProcAddrTable {
        0 = device::get_devices, 1 = device::get_sub_devices, 2 = device::get_properties, 5 = device::get_queue_groups,
        17 = device::get_pci_properties,
    }
    zeGetContextProcAddrTable { 0 = device::create_context, 1 = device::destroy_context }
    zeGetCommandQueueProcAddrTable { 0 = queue::create, 1 = queue::destroy, 2 = queue::execute, 3 = queue::synchronize }
    zeGetCommandListProcAddrTable {
        0 = list::create, 1 = list::create_immediate, 2 = list::destroy, 3 = list::close, 4 = list::reset,
        6 = list::append_barrier, 8 = list::append_copy, 9 = list::append_fill, 18 = list::append_signal,
        19 = list::append_wait, 20 = list::append_reset, 22 = list::append_kernel, 23 = list::append_kernel,
    }
    zeGetFenceProcAddrTable lacks "fences" {
        0 = queue::create_fence, 1 = event::destroy, 2 = event::synchronize, 3 = event::query, 4 = event::reset,
    }
    zeGetEventPoolProcAddrTable lacks "events" { 0 = event::create_pool, 1 = event::destroy_pool }
    zeGetEventProcAddrTable {
        0 = event::create, 1 = event::destroy, 2 = event::signal, 3 = event::synchronize, 4 = event::query, 5 = event::reset,
    }
    zeGetModuleProcAddrTable { 0 = kernel::create_module, 1 = kernel::destroy_module }
    zeGetKernelProcAddrTable { 0 = kernel::create, 1 = kernel::destroy, 3 = kernel::set_group_size, 6 = kernel::set_argument }
    zeGetMemProcAddrTable { 0 = memory::allocate_shared, 1 = memory::allocate_device, 2 = memory::allocate_host, 3 = memory::free }
}

/// Exports functions that leave a table empty.
macro_rules! empty_tables {
    ( $( $get:ident )* ) => { $(
        /// Leaves a table empty.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name that the loader looks up")]
        pub(crate) extern "C" fn $get(_version: c_uint, _table: *mut *const c_void) -> Code {
            SUCCESS
        }
    )* };
}

// The loader rejects a driver that lacks one of these.
empty_tables! {
    zeGetImageProcAddrTable zeGetModuleBuildLogProcAddrTable zeGetSamplerProcAddrTable
    zeGetPhysicalMemProcAddrTable zeGetVirtualMemProcAddrTable zetGetDeviceProcAddrTable
    zetGetContextProcAddrTable zetGetCommandListProcAddrTable zetGetModuleProcAddrTable
    zetGetKernelProcAddrTable zetGetMetricGroupProcAddrTable zetGetMetricProcAddrTable
    zetGetMetricStreamerProcAddrTable zetGetMetricQueryPoolProcAddrTable zetGetMetricQueryProcAddrTable
    zetGetDebugProcAddrTable zetGetTracerExpProcAddrTable zesGetDriverProcAddrTable
    zesGetDeviceProcAddrTable zesGetSchedulerProcAddrTable zesGetPerformanceFactorProcAddrTable
    zesGetPowerProcAddrTable zesGetFrequencyProcAddrTable zesGetEngineProcAddrTable
    zesGetStandbyProcAddrTable zesGetFirmwareProcAddrTable zesGetMemoryProcAddrTable
    zesGetFabricPortProcAddrTable zesGetTemperatureProcAddrTable zesGetPsuProcAddrTable
    zesGetFanProcAddrTable zesGetLedProcAddrTable zesGetRasProcAddrTable zesGetDiagnosticsProcAddrTable
}
