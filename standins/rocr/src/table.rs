//! The tables of functions. Every exported function jumps through its slot, so a tool that replaces a slot sees every call.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::status::{ERROR, Status};
use crate::{
    agents, async_handlers, copies, executables, ipc, memory, pools, queues, runtime, signal_functions,
    status, system, vmem,
};

/// A table.
#[allow(non_camel_case_types, reason = "named as in interface.txt")]
#[derive(Clone, Copy)]
pub(crate) enum Table {
    core,
    amd,
    finalizer,
    image,
    tools,
    sampling,
}

/// A function's place.
pub(crate) struct Slot {
    table: Table,
    index: usize,
}

#[allow(non_upper_case_globals, dead_code, reason = "named as the functions; generated for all of them")]
mod slots {
    use super::{Slot, Table};
    include!(concat!(env!("OUT_DIR"), "/slots.rs"));
}

/// The version of a table, which its functions follow.
#[repr(C, align(8))]
pub(crate) struct TableHeader {
    /// Major version, size in bytes, step version, reserved.
    pub(crate) version: [AtomicU32; 4],
}

unsafe extern "C" {
    #[link_name = "rocr_standin_core"]
    static CORE: TableHeader;
    #[link_name = "rocr_standin_amd"]
    static AMD: TableHeader;
    #[link_name = "rocr_standin_finalizer"]
    static FINALIZER: TableHeader;
    #[link_name = "rocr_standin_image"]
    static IMAGE: TableHeader;
    #[link_name = "rocr_standin_tools"]
    static TOOLS: TableHeader;
    #[link_name = "rocr_standin_sampling"]
    static SAMPLING: TableHeader;
}

const VERSION_BYTES: usize = size_of::<TableHeader>();

/// Each table with its number of slots, major version and step version.
pub(crate) fn tables() -> [(&'static TableHeader, usize, u32, u32); 6] {
    // SAFETY: `build.rs` generates these statics with a header and as many slots.
    unsafe {
        [
            (&CORE, slots::CORE_SLOTS, 2, 0),
            (&AMD, slots::AMD_SLOTS, 2, 8),
            (&FINALIZER, slots::FINALIZER_SLOTS, 2, 0),
            (&IMAGE, slots::IMAGE_SLOTS, 2, 1),
            (&TOOLS, slots::TOOLS_SLOTS, 1, 0),
            (&SAMPLING, slots::SAMPLING_SLOTS, 1, 0),
        ]
    }
}

fn slot_address(slot: &Slot) -> &'static AtomicPtr<c_void> {
    let (header, slots, ..) = tables()[slot.table as usize];
    assert!(slot.index < slots, "build.rs numbers the slots of each table");
    // SAFETY: the table has more slots than the index, as asserted, after its header.
    unsafe {
        &*std::ptr::from_ref(header).byte_add(VERSION_BYTES).cast::<AtomicPtr<c_void>>().add(slot.index)
    }
}

/// Writes the versions of all tables. `HSA_STANDIN_SIZE` replaces the size of the core table.
pub(crate) fn write_versions() {
    let core_size = std::env::var("HSA_STANDIN_SIZE").ok().and_then(|size| size.parse().ok());
    for (number, (header, slots, major, step)) in tables().into_iter().enumerate() {
        let whole = u32::try_from(VERSION_BYTES + 8 * slots).unwrap_or(0);
        let size = if number == Table::core as usize { core_size.unwrap_or(whole) } else { whole };
        header.version[0].store(major, Ordering::Release);
        header.version[1].store(size, Ordering::Release);
        header.version[2].store(step, Ordering::Release);
    }
}

/// The entry of every function that is not implemented.
#[unsafe(no_mangle)]
extern "C" fn rocr_standin_unsupported(name: *const c_char) -> Status {
    if std::env::var_os("ROCR_STANDIN_VERBOSE").is_some() {
        // SAFETY: `build.rs` generates the name as a C string.
        eprintln!("rocr stand-in: {} is not implemented", unsafe { CStr::from_ptr(name) }.to_string_lossy());
    }
    ERROR
}

macro_rules! implemented {
    ( $( $name:ident = $function:expr; )* ) => {
        /// Puts the runtime's own functions into all slots.
        pub(crate) extern "C" fn fill() {
            $( slot_address(&slots::$name).store($function as *mut c_void, Ordering::Release); )*
        }
    };
}

implemented! {
    hsa_init = runtime::init;
    hsa_shut_down = runtime::shut_down;
    hsa_status_string = status::status_string;
    hsa_system_get_info = system::get_info;
    hsa_system_extension_supported = system::extension_supported;
    hsa_system_major_extension_supported = system::major_extension_supported;
    hsa_system_get_major_extension_table = system::major_extension_table;
    hsa_system_get_extension_table = system::extension_table;
    hsa_agent_extension_supported = system::agent_extension_supported;
    hsa_agent_major_extension_supported = system::agent_major_extension_supported;
    hsa_iterate_agents = agents::iterate;
    hsa_agent_get_info = agents::get_info;
    hsa_agent_iterate_isas = agents::iterate_isas;
    hsa_isa_get_info_alt = agents::isa_get_info;
    hsa_isa_from_name = agents::isa_from_name;
    hsa_agent_iterate_caches = agents::iterate_caches;
    hsa_queue_create = queues::create;
    hsa_queue_destroy = queues::destroy;
    hsa_queue_inactivate = queues::inactivate;
    hsa_queue_load_read_index_scacquire = queues::load_read_index;
    hsa_queue_load_read_index_relaxed = queues::load_read_index;
    hsa_queue_load_write_index_scacquire = queues::load_write_index;
    hsa_queue_load_write_index_relaxed = queues::load_write_index;
    hsa_queue_store_write_index_relaxed = queues::store_write_index;
    hsa_queue_store_write_index_screlease = queues::store_write_index;
    hsa_queue_cas_write_index_scacq_screl = queues::compare_exchange_write_index;
    hsa_queue_cas_write_index_scacquire = queues::compare_exchange_write_index;
    hsa_queue_cas_write_index_relaxed = queues::compare_exchange_write_index;
    hsa_queue_cas_write_index_screlease = queues::compare_exchange_write_index;
    hsa_queue_add_write_index_scacq_screl = queues::add_write_index;
    hsa_queue_add_write_index_scacquire = queues::add_write_index;
    hsa_queue_add_write_index_relaxed = queues::add_write_index;
    hsa_queue_add_write_index_screlease = queues::add_write_index;
    hsa_amd_queue_cu_set_mask = queues::set_cu_mask;
    hsa_amd_queue_cu_get_mask = queues::get_cu_mask;
    hsa_amd_queue_set_priority = queues::set_priority;
    hsa_amd_queue_get_info = queues::get_info;
    hsa_amd_profiling_set_profiler_enabled = queues::set_profiler_enabled;
    hsa_signal_create = signal_functions::create;
    hsa_amd_signal_create = signal_functions::create_with_attributes;
    hsa_signal_destroy = signal_functions::destroy;
    hsa_signal_load_relaxed = signal_functions::load;
    hsa_signal_load_scacquire = signal_functions::load;
    hsa_signal_store_relaxed = signal_functions::store;
    hsa_signal_store_screlease = signal_functions::store;
    hsa_signal_silent_store_relaxed = signal_functions::silent_store;
    hsa_signal_silent_store_screlease = signal_functions::silent_store;
    hsa_signal_wait_relaxed = signal_functions::wait;
    hsa_signal_wait_scacquire = signal_functions::wait;
    hsa_signal_and_relaxed = signal_functions::and;
    hsa_signal_and_scacquire = signal_functions::and;
    hsa_signal_and_screlease = signal_functions::and;
    hsa_signal_and_scacq_screl = signal_functions::and;
    hsa_signal_or_relaxed = signal_functions::or;
    hsa_signal_or_scacquire = signal_functions::or;
    hsa_signal_or_screlease = signal_functions::or;
    hsa_signal_or_scacq_screl = signal_functions::or;
    hsa_signal_xor_relaxed = signal_functions::xor;
    hsa_signal_xor_scacquire = signal_functions::xor;
    hsa_signal_xor_screlease = signal_functions::xor;
    hsa_signal_xor_scacq_screl = signal_functions::xor;
    hsa_signal_add_relaxed = signal_functions::add;
    hsa_signal_add_scacquire = signal_functions::add;
    hsa_signal_add_screlease = signal_functions::add;
    hsa_signal_add_scacq_screl = signal_functions::add;
    hsa_signal_subtract_relaxed = signal_functions::subtract;
    hsa_signal_subtract_scacquire = signal_functions::subtract;
    hsa_signal_subtract_screlease = signal_functions::subtract;
    hsa_signal_subtract_scacq_screl = signal_functions::subtract;
    hsa_signal_exchange_relaxed = signal_functions::exchange;
    hsa_signal_exchange_scacquire = signal_functions::exchange;
    hsa_signal_exchange_screlease = signal_functions::exchange;
    hsa_signal_exchange_scacq_screl = signal_functions::exchange;
    hsa_signal_cas_relaxed = signal_functions::compare_exchange;
    hsa_signal_cas_scacquire = signal_functions::compare_exchange;
    hsa_signal_cas_screlease = signal_functions::compare_exchange;
    hsa_signal_cas_scacq_screl = signal_functions::compare_exchange;
    hsa_amd_signal_value_pointer = signal_functions::value_pointer;
    hsa_amd_signal_wait_any = signal_functions::wait_any;
    hsa_amd_signal_wait_all = signal_functions::wait_all;
    hsa_amd_signal_async_handler = async_handlers::add;
    hsa_amd_async_function = async_handlers::add_function;
    hsa_amd_profiling_get_dispatch_time = signal_functions::dispatch_time;
    hsa_amd_profiling_get_async_copy_time = signal_functions::copy_time;
    hsa_amd_profiling_convert_tick_to_system_domain = signal_functions::to_system_time;
    hsa_amd_profiling_async_copy_enable = copies::enable_profiling;
    hsa_amd_agent_iterate_memory_pools = pools::iterate;
    hsa_amd_memory_pool_get_info = pools::get_info;
    hsa_amd_agent_memory_pool_get_info = pools::get_agent_info;
    hsa_amd_memory_pool_can_migrate = pools::can_migrate;
    hsa_amd_memory_pool_allocate = memory::allocate;
    hsa_amd_memory_pool_free = memory::free;
    hsa_amd_agents_allow_access = memory::allow_access;
    hsa_amd_pointer_info = memory::pointer_info;
    hsa_amd_pointer_info_set_userdata = memory::set_user_data;
    hsa_amd_memory_lock = memory::lock;
    hsa_amd_memory_lock_to_pool = memory::lock_to_pool;
    hsa_amd_memory_unlock = memory::unlock;
    hsa_amd_memory_fill = memory::fill;
    hsa_amd_register_deallocation_callback = memory::register_callback;
    hsa_amd_deregister_deallocation_callback = memory::deregister_callback;
    hsa_memory_copy = memory::copy;
    hsa_memory_register = memory::register;
    hsa_memory_deregister = memory::deregister;
    hsa_amd_coherency_get_type = agents::get_coherency;
    hsa_amd_coherency_set_type = agents::set_coherency;
    hsa_amd_agent_set_async_scratch_limit = agents::set_scratch_limit;
    hsa_amd_memory_async_copy = copies::copy;
    hsa_amd_memory_async_copy_on_engine = copies::copy_on_engine;
    hsa_amd_memory_async_copy_rect = copies::copy_rect;
    hsa_amd_memory_copy_engine_status = copies::engine_status;
    hsa_amd_memory_get_preferred_copy_engine = copies::preferred_engine;
    hsa_amd_ipc_memory_create = ipc::create_memory;
    hsa_amd_ipc_memory_attach = ipc::attach_memory;
    hsa_amd_ipc_memory_detach = ipc::detach_memory;
    hsa_amd_ipc_signal_create = ipc::create_signal;
    hsa_amd_ipc_signal_attach = ipc::attach_signal;
    hsa_amd_portable_export_dmabuf = ipc::export_dmabuf;
    hsa_amd_portable_export_dmabuf_v2 = ipc::export_dmabuf_with_flags;
    hsa_amd_portable_close_dmabuf = ipc::close_dmabuf;
    hsa_amd_interop_map_buffer = ipc::map_buffer;
    hsa_amd_interop_unmap_buffer = ipc::unmap_buffer;
    hsa_amd_vmem_address_reserve = vmem::reserve;
    hsa_amd_vmem_address_reserve_align = vmem::reserve_aligned;
    hsa_amd_vmem_address_free = vmem::free_address;
    hsa_amd_vmem_handle_create = vmem::create_handle;
    hsa_amd_vmem_handle_release = vmem::release_handle;
    hsa_amd_vmem_map = vmem::map;
    hsa_amd_vmem_unmap = vmem::unmap;
    hsa_amd_vmem_set_access = vmem::set_access;
    hsa_amd_vmem_get_access = vmem::get_access;
    hsa_amd_vmem_export_shareable_handle = vmem::export_handle;
    hsa_amd_vmem_import_shareable_handle = vmem::import_handle;
    hsa_amd_vmem_retain_alloc_handle = vmem::retain_handle;
    hsa_amd_vmem_get_alloc_properties_from_handle = vmem::handle_properties;
    hsa_amd_register_system_event_handler = runtime::register_event_handler;
    hsa_amd_enable_logging = system::enable_logging;
    hsa_amd_svm_attributes_set = memory::set_svm_attributes;
    hsa_amd_svm_attributes_get = memory::get_svm_attributes;
    hsa_amd_svm_prefetch_async = memory::prefetch_svm;
    hsa_code_object_reader_create_from_memory = executables::create_reader;
    hsa_code_object_reader_create_from_file = executables::create_reader_from_file;
    hsa_code_object_reader_destroy = executables::destroy_reader;
    hsa_executable_create = executables::create_old;
    hsa_executable_create_alt = executables::create;
    hsa_executable_destroy = executables::destroy;
    hsa_executable_freeze = executables::freeze;
    hsa_executable_load_agent_code_object = executables::load;
    hsa_executable_agent_global_variable_define = executables::define_variable;
    hsa_executable_get_symbol = executables::get_symbol_old;
    hsa_executable_get_symbol_by_name = executables::get_symbol;
    hsa_executable_iterate_symbols = executables::iterate_symbols;
    hsa_executable_iterate_agent_symbols = executables::iterate_agent_symbols;
    hsa_executable_symbol_get_info = executables::symbol_info;
    hsa_executable_validate = executables::validate;
}

/// Fills the tables when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static FILL: extern "C" fn() = fill;
