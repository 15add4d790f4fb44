//! Interception through the runtime's API table. On first use the runtime passes its table to a tool, through
//! `rocprofiler-register`, which finds the tool by the two names exported here. All exported functions of the runtime
//! dispatch through the table, so this works however a program obtained a function. Runtimes before version 6.2, and those
//! of some distributions, lack it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use xsched_interpose::run_isolated;
use xsched_ipc::report::{Severity, report};

use super::hooks;
use super::runtime_copies::{self, Interception};
use crate::loaded_libraries::{LoadedLibrary, next_function};

/// A larger size is not plausible.
const MAX_TABLE_BYTES: usize = 1 << 20;

/// The newest major version whose table is known. Within a version new functions are only added at the end.
const NEWEST_KNOWN_VERSION: u64 = 7;

/// Its presence identifies this library as a tool. It configures nothing.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rocprofiler_configure(
    _version: u32,
    _runtime: *const c_char,
    _priority: u32,
    _client: *mut c_void,
) -> *mut c_void {
    std::ptr::null_mut()
}

type SetApiTable = unsafe extern "C" fn(*const c_char, u64, u64, *mut *mut c_void, u64) -> c_int;

/// Receives a table. A profiler in the process gets it first, so that the functions it puts there are the real ones to the
/// hooks.
///
/// # Safety
/// `tables` points to `count` tables, and `name` is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rocprofiler_set_api_table(
    name: *const c_char,
    version: u64,
    instance: u64,
    tables: *mut *mut c_void,
    count: u64,
) -> c_int {
    // SAFETY: the caller guarantees a C string.
    let is_named = |runtime: &CStr| !name.is_null() && unsafe { CStr::from_ptr(name) } == runtime;
    let has_table = count > 0 && !tables.is_null();
    let is_hip = has_table && is_named(c"hip");
    let is_known = is_hip && version / 10_000 <= NEWEST_KNOWN_VERSION;
    // SAFETY: the caller guarantees at least one table.
    let table = is_known.then(|| unsafe { ApiTable::at((*tables).cast()) }).flatten();
    // The library is determined before a profiler replaces the functions.
    let library = table.as_ref().and_then(ApiTable::owner);
    let mut result = 0;
    if let Some(profiler) = profiler() {
        // SAFETY: the caller's own arguments.
        result = unsafe { profiler(name, version, instance, tables, count) };
    }
    if has_table && is_named(c"hsa") {
        // SAFETY: as above; the first table of ROCr is the list of all its tables.
        unsafe { super::hsa::intercept(*tables) };
    }
    run_isolated(|| match table.zip(library) {
        Some((table, library)) => table.install_hooks(library),
        None if is_hip => {
            report(
                Severity::Warning,
                format_args!(
                    "a HIP runtime's table of functions is not as expected and left alone: \
                     functions called by name are scheduled"
                ),
            );
        }
        None => {}
    });
    result
}

/// The function of the same name in a profiler of this process. It is looked up in the libraries' symbol tables: the runtime
/// is being initialized, and opening a library would run pending constructors, which use the runtime.
///
/// If the environment requests a profiler that is not loaded, `rocprofiler-register` would have loaded it in place of this
/// library, so it is loaded here: at the point where that library would have called `dlopen`, on the same thread, so that the
/// same constructors run as without this library.
fn profiler() -> Option<SetApiTable> {
    const NAME: &CStr = c"rocprofiler_set_api_table";
    let mut found = next_function(NAME);
    if found.is_null() && std::env::var_os("ROCP_TOOL_LIBRARIES").is_some_and(|list| !list.is_empty()) {
        let flags = libc::RTLD_LAZY | libc::RTLD_GLOBAL;
        // SAFETY: a C string; this is the library of a profiler, not of a runtime.
        let library = unsafe { libc::dlopen(c"librocprofiler-sdk.so".as_ptr(), flags) };
        if !library.is_null() {
            found = next_function(NAME);
        }
    }
    let is_own = found.cast_const() == rocprofiler_set_api_table as *const c_void;
    // SAFETY: the function of this name has this type.
    (!found.is_null() && !is_own).then(|| unsafe { std::mem::transmute::<*mut c_void, SetApiTable>(found) })
}

/// `{ size_t size; function slots[]; }`. New versions only add slots at the end.
struct ApiTable {
    first: *mut *mut c_void,
    slots: usize,
}

impl ApiTable {
    /// None if the size is not plausible.
    ///
    /// # Safety
    /// `address` is null or that of a table.
    unsafe fn at(address: *mut usize) -> Option<Self> {
        if address.is_null() {
            return None;
        }
        // SAFETY: the caller guarantees a table, which begins with its size.
        let size = unsafe { *address };
        let is_plausible = size.is_multiple_of(8) && (16..=MAX_TABLE_BYTES).contains(&size);
        // SAFETY: the slots follow the size.
        is_plausible.then(|| Self { first: unsafe { address.add(1) }.cast(), slots: size / 8 - 1 })
    }

    fn slot(&self, number: usize) -> Option<*mut *mut c_void> {
        // SAFETY: the table has more than `number` slots.
        (number < self.slots).then(|| unsafe { self.first.add(number) })
    }

    /// The hooks whose functions the table has, with their slots.
    fn hooks(&self) -> impl Iterator<Item = (&'static runtime_copies::Hook, *mut *mut c_void)> {
        let with_slot = |hook: &'static runtime_copies::Hook| Some((hook, self.slot(hook.slot?)?));
        // SAFETY: slots of the table hold functions or null.
        hooks().filter_map(with_slot).filter(|(_, slot)| unsafe { !(**slot).is_null() })
    }

    /// The runtime that the table belongs to; none if its functions are not in one library.
    fn owner(&self) -> Option<LoadedLibrary> {
        // SAFETY: as above.
        let mut functions = self.hooks().map(|(_, slot)| unsafe { *slot });
        let owner = LoadedLibrary::containing(functions.next()?)?;
        functions.all(|function| owner.holds(function)).then_some(owner)
    }

    fn install_hooks(&self, library: LoadedLibrary) {
        let Some(copy) = runtime_copies::register(library, Interception::Table) else { return };
        let mut installed = 0;
        for (hook, slot) in self.hooks() {
            // SAFETY: the runtime permits changes of its table during this call.
            let real = unsafe { *slot };
            if hook.hooked.contains(&real.cast_const()) {
                continue;
            }
            // Release: pairs with the Acquire in the hook.
            hook.real[copy].store(real, Ordering::Release);
            // SAFETY: as above.
            unsafe { *slot = hook.hooked[copy].cast_mut() };
            installed += 1;
        }
        let all = hooks().filter(|hook| hook.slot.is_some()).count();
        report(
            Severity::Info,
            format_args!(
                "HIP's API table was intercepted: {installed} of {all} functions are in its {} slots",
                self.slots
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_beyond_the_size_are_not_accessed() {
        for (size, slots) in [(0, None), (8, None), (20, None), (usize::MAX, None), (24, Some(2))] {
            let mut memory = [size, 0, 0];
            // SAFETY: it begins with its size, and no slot is accessed.
            let table = unsafe { ApiTable::at(memory.as_mut_ptr()) };
            assert_eq!(table.map(|table| table.slots), slots, "{size}");
        }
        // SAFETY: null is allowed.
        assert!(unsafe { ApiTable::at(std::ptr::null_mut()) }.is_none());
        let mut memory = [24, 0, 0];
        // SAFETY: as above.
        let table = unsafe { ApiTable::at(memory.as_mut_ptr()) }.unwrap();
        assert!(table.slot(1).is_some() && table.slot(2).is_none());
    }
}
