//! How tools are found and given the table.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use super::{Core, SLOTS, Tables, VERSION_BYTES, core, look_up};

/// Loaded tools, as handles of the dynamic loader.
static LOADED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

type OnLoad = unsafe extern "C" fn(*mut Tables, u64, u64, *const *const c_char) -> bool;
type OnUnload = unsafe extern "C" fn();

/// For tests in the same process that are not tools.
#[unsafe(no_mangle)]
extern "C" fn hsa_standin_tables() -> *mut Tables {
    tables()
}

fn tables() -> *mut Tables {
    let size = std::env::var("HSA_STANDIN_SIZE").ok().and_then(|size| size.parse().ok());
    let whole = u32::try_from(VERSION_BYTES + 8 * SLOTS).unwrap_or(0);
    let core: &Core = core();
    core.version[1].store(size.unwrap_or(whole), Ordering::Release);
    let tables = Tables { version: [3, 0, 0, 0], core, others: [ptr::null(); 3] };
    Box::into_raw(Box::new(tables))
}

pub(super) fn load() {
    let tables = tables();
    if std::env::var_os("HSA_STANDIN_REGISTER").is_some() && pass_to_register(tables) {
        return;
    }
    let named = std::env::var("HSA_TOOLS_LIB").unwrap_or_default();
    let named = named.split(' ').filter(|name| !name.is_empty()).filter_map(|name| CString::new(name).ok());
    // SAFETY: a C string; the user named the library.
    let open = |name: CString| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
    let mut tools: Vec<_> = named.map(open).collect();
    let old = std::env::var_os("HSA_STANDIN_OLD").is_some();
    let mut found = if old { Vec::new() } else { in_process() };
    found.sort_by_key(|(priority, _)| *priority);
    tools.extend(found.into_iter().map(|(_, handle)| handle));
    let mut known: Vec<*mut c_void> = Vec::new();
    for tool in tools.into_iter().filter(|tool| !tool.is_null()) {
        let on_load = look_up(tool, c"OnLoad");
        if known.contains(&tool) || on_load.is_null() {
            continue;
        }
        known.push(tool);
        // SAFETY: the function of this name has this type; the tables are never freed.
        unsafe { std::mem::transmute::<*mut c_void, OnLoad>(on_load)(tables, 3, 0, ptr::null()) };
    }
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) =
        known.into_iter().map(<*mut c_void>::expose_provenance).collect();
}

/// Unloads tools in the order in which they were loaded, and closes them.
pub(super) fn unload() {
    let tools = std::mem::take(&mut *LOADED.lock().unwrap_or_else(PoisonError::into_inner));
    for tool in tools.into_iter().map(ptr::with_exposed_provenance_mut::<c_void>) {
        let on_unload = look_up(tool, c"OnUnload");
        if !on_unload.is_null() {
            // SAFETY: the function of this name has this type.
            unsafe { std::mem::transmute::<*mut c_void, OnUnload>(on_unload)() };
        }
        // SAFETY: opened by `load`, or by `in_process`.
        unsafe { libc::dlclose(tool) };
    }
    super::fill(&core().functions);
}

/// The libraries of the process that are tools, with their priorities.
fn in_process() -> Vec<(u32, *mut c_void)> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
        // SAFETY: the loader passes its own record, and the vector that is passed to it below.
        let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: a C string of the loader.
            names.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `note` gets the vector that it expects.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    let tool = |name: &CString| {
        // SAFETY: a C string; RTLD_NOLOAD loads nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if name.is_empty() || handle.is_null() {
            return None;
        }
        let priority = look_up(handle, c"HSA_AMD_TOOL_PRIORITY").cast::<u32>();
        // dlsym also searches the library's dependencies; only its own symbol counts.
        // SAFETY: all zero is a valid value of this plain struct of addresses.
        let mut symbol: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is valid; the address may be any.
        let known = !priority.is_null() && unsafe { libc::dladdr(priority.cast(), &raw mut symbol) } != 0;
        // SAFETY: the loader's name of the library that contains the symbol.
        let own = known && unsafe { CStr::from_ptr(symbol.dli_fname) } == name.as_c_str();
        // SAFETY: the symbol is a number.
        own.then(|| (unsafe { *priority }, handle))
    };
    names.iter().filter_map(tool).collect()
}

/// Does what `rocprofiler-register` does. Returns whether a tool was found.
fn pass_to_register(tables: *mut Tables) -> bool {
    let set = look_up(libc::RTLD_DEFAULT, c"rocprofiler_set_api_table");
    if set.is_null() || look_up(libc::RTLD_DEFAULT, c"rocprofiler_configure").is_null() {
        return false;
    }
    let mut list = [tables.cast::<c_void>()];
    // SAFETY: the function of this name has this type; the table is never freed.
    unsafe {
        std::mem::transmute::<*mut c_void, crate::table::SetTable>(set)(
            c"hsa".as_ptr(),
            0,
            0,
            list.as_mut_ptr(),
            1,
        );
    }
    true
}
