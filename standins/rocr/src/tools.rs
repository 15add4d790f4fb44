//! How tools are found and given the tables.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::table::{TableHeader, tables, write_versions};

/// Loaded tools, as handles of the dynamic loader.
static LOADED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The list of all tables.
#[repr(C)]
pub(crate) struct TableList {
    version: [u32; 4],
    tables: [*const TableHeader; 6],
}

/// `HSA_API_TABLE_MAJOR_VERSION` and `HSA_API_TABLE_STEP_VERSION`.
const MAJOR_VERSION: u32 = 3;
const STEP_VERSION: u32 = 1;

type OnLoad = unsafe extern "C" fn(*mut TableList, u64, u64, *const *const c_char) -> bool;
type OnUnload = unsafe extern "C" fn();

/// For tests in the same process that are not tools.
#[unsafe(no_mangle)]
extern "C" fn hsa_standin_tables() -> *mut TableList {
    table_list()
}

/// The list that is passed to tools. It is never freed: tools may keep it.
fn table_list() -> *mut TableList {
    static LIST: OnceLock<usize> = OnceLock::new();
    write_versions();
    let list = LIST.get_or_init(|| {
        let list = TableList {
            version: [MAJOR_VERSION, u32::try_from(size_of::<TableList>()).unwrap_or(0), STEP_VERSION, 0],
            tables: tables().map(|(header, ..)| ptr::from_ref(header)),
        };
        Box::into_raw(Box::new(list)).expose_provenance()
    });
    ptr::with_exposed_provenance_mut(*list)
}

/// The function of this name in a library.
fn look_up(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a handle of the dynamic loader, and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Passes the tables to `rocprofiler-register`; if that finds no tool, to those that `HSA_TOOLS_LIB` names, then to the
/// libraries of the process that are tools.
pub(crate) fn load() {
    let list = table_list();
    if pass_to_register(list) {
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
        // SAFETY: the function of this name has this type; the list is never freed.
        unsafe {
            std::mem::transmute::<*mut c_void, OnLoad>(on_load)(list, MAJOR_VERSION.into(), 0, ptr::null());
        }
    }
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) =
        known.into_iter().map(<*mut c_void>::expose_provenance).collect();
}

/// Unloads tools in the order in which they were loaded, and closes them.
pub(crate) fn unload() {
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

/// `rocprofiler_set_api_table`.
type SetTable = unsafe extern "C" fn(*const c_char, u64, u64, *mut *mut c_void, u64) -> c_int;
/// Identifies a runtime to `rocprofiler-register`: its functions' addresses must lie in the library that is named.
type Import = unsafe extern "C" fn() -> u32;
/// `rocprofiler_register_library_api_table`.
type Register = unsafe extern "C" fn(*const c_char, Import, u32, *mut *mut c_void, u64, *mut u64) -> c_int;

/// The version that this stand-in states to `rocprofiler-register`, as its macro computes it for 1.18.0.
const REGISTER_VERSION: u32 = 10_000 + 18 * 100;

/// Called by `rocprofiler-register` to find the version of the runtime that registers.
#[unsafe(no_mangle)]
extern "C" fn rocprofiler_register_import_hsa() -> u32 {
    REGISTER_VERSION
}

/// Passes the tables to tools by `rocprofiler-register`. Returns whether a tool was found.
///
/// `HSA_STANDIN_REGISTER=1` does what AMD's library does without it; a path is AMD's library itself.
fn pass_to_register(list: *mut TableList) -> bool {
    let Some(library) = std::env::var_os("HSA_STANDIN_REGISTER") else { return false };
    let mut tables = [list.cast::<c_void>()];
    if library != "1" {
        return pass_to_library(&library, &mut tables);
    }
    let set = look_up(libc::RTLD_DEFAULT, c"rocprofiler_set_api_table");
    if set.is_null() || look_up(libc::RTLD_DEFAULT, c"rocprofiler_configure").is_null() {
        return false;
    }
    // SAFETY: the function of this name has this type; the list is never freed.
    unsafe {
        std::mem::transmute::<*mut c_void, SetTable>(set)(c"hsa".as_ptr(), 0, 0, tables.as_mut_ptr(), 1);
    }
    true
}

fn pass_to_library(library: &std::ffi::OsStr, tables: &mut [*mut c_void; 1]) -> bool {
    static REGISTRATION: AtomicU64 = AtomicU64::new(0);
    let Ok(name) = CString::new(library.as_encoded_bytes()) else { return false };
    // SAFETY: a C string; the test named the library.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return false;
    }
    let register = look_up(handle, c"rocprofiler_register_library_api_table");
    if register.is_null() {
        return false;
    }
    let mut id = 0;
    // SAFETY: the function of this name has this type; the list is never freed.
    let status = unsafe {
        std::mem::transmute::<*mut c_void, Register>(register)(
            c"hsa".as_ptr(),
            rocprofiler_register_import_hsa,
            REGISTER_VERSION,
            tables.as_mut_ptr(),
            1,
            &raw mut id,
        )
    };
    REGISTRATION.store(id, Ordering::Relaxed);
    status == 0
}
