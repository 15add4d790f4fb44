//! The loader's own look-up functions, hooked: most programs reach the vendor's library through them.
//!
//! ```text
//!   dlsym(handle, "cuLaunchKernel") ──► one of our names? ──no──► jump to the real dlsym, as if we were not there
//!                                          │yes
//!                                          ▼
//!                          remember what the real one answers, answer with our hook
//! ```
//! Whoever asks in all libraries at once, and is told of our export, is told nothing if no other library has the function.
//!
//! The real `dlsym` looks at its return address to know who asks, so for names that are not ours it is jumped to, not
//! called. It may run before anything of ours, or of Rust's, is set up: no lock, no allocation, no state but atomics.
//!
//! `dlvsym`, which looks up one version of a name, is hooked in the same way. So neither can find the other for us:
//! [`elf`] does.

pub(crate) mod elf;

use std::arch::naked_asm;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use xsched_interpose::RealFunction;

/// The libraries that we stand in front of.
static LIBRARIES: [&Library; 3] =
    [&crate::platforms::cuda::LIBRARY, &crate::platforms::opencl::LIBRARY, &crate::platforms::xsim::LIBRARY];

/// One function that we stand in front of.
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    pub(crate) ours: *const c_void,
    /// Where the vendor's function is kept once it is known.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

// SAFETY: the pointers are addresses of functions and statics, which never change.
unsafe impl Sync for Hook {}

impl Hook {
    /// Whether the vendor's function is known, and is another than this.
    fn is_of_another(&self, found: *mut c_void) -> bool {
        let known = self.real.load(Ordering::Acquire);
        !known.is_null() && known != found
    }

    /// The library that has the vendor's function under its name; none if the function is not known, or is the library's
    /// secret: what a look-up of the library's own has found may lie in another.
    fn home(&self) -> Option<*mut c_void> {
        let function = self.real.load(Ordering::Acquire);
        // SAFETY: all zero is a valid value of this plain struct of addresses.
        let mut whose: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: the place is large enough; the address may be any.
        let found = !function.is_null() && unsafe { libc::dladdr(function, &raw mut whose) } != 0;
        if !found || whose.dli_fname.is_null() {
            return None;
        }
        // SAFETY: `dli_fname` is the C string the loader keeps for a library that is loaded; nothing new is loaded.
        let handle = unsafe { libc::dlopen(whose.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: the handle is good, and the name a C string.
        let has_it = !unsafe { real_dlsym()(handle, self.name.as_ptr()) }.is_null();
        if !has_it {
            // SAFETY: opened above, and used no more.
            unsafe { libc::dlclose(handle) };
        }
        has_it.then_some(handle)
    }

    /// Remembers the vendor's function and answers with ours.
    pub(crate) fn put_before(&self, real: *mut c_void) -> *mut c_void {
        if real.cast_const() != self.ours {
            // Release: pairs with the Acquire where the function is called.
            self.real.store(real, Ordering::Release);
        }
        self.ours.cast_mut()
    }
}

/// A vendor's library: what we stand in front of, and the copy of it that the program uses.
pub(crate) struct Library {
    prefix: &'static str,
    hooks: &'static [Hook],
    copy: AtomicPtr<c_void>,
}

impl Library {
    /// `prefix` is what the names of all its functions begin with.
    pub(crate) const fn new(prefix: &'static str, hooks: &'static [Hook]) -> Self {
        Self { prefix, hooks, copy: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// All hooks.
    pub(crate) fn hooks(&self) -> &'static [Hook] {
        self.hooks
    }

    /// What the copy that the program uses exports under a name; null if it is not known yet, or has no such function.
    pub(crate) fn find(&self, name: &CStr) -> *mut c_void {
        match self.copy() {
            copy if copy.is_null() => copy,
            // SAFETY: the handle is one the loader gave us and that is never closed; the name is a C string.
            copy => unsafe { real_dlsym()(copy, name.as_ptr()) },
        }
    }

    /// Takes the copy that is loaded under this file name, if no function of any copy has come by: the program may have
    /// got at it without us. Nothing is loaded. Answers whether a copy is known.
    pub(crate) fn meet(&self, file: &str) -> bool {
        if self.copy().is_null()
            && let Some(path) = loaded(file)
        {
            // SAFETY: a C string; nothing new is loaded.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            self.copy.store(handle, Ordering::Release);
        }
        !self.copy().is_null()
    }

    /// The hook for a name as `dlsym` is asked for it.
    fn hook(&self, name: &CStr) -> Option<&'static Hook> {
        let ours = name.to_bytes().starts_with(self.prefix.as_bytes());
        ours.then(|| self.hooks.iter().find(|hook| hook.name == name)).flatten()
    }

    /// What a look-up function of the library's own answers with: our hook in place of what `real` finds, if we have one.
    /// Where several vendors are behind the library, each may have a function of its own.
    pub(crate) fn look_up(&self, real: impl FnOnce() -> *mut c_void, name: *const c_char) -> *mut c_void {
        let found = real();
        if found.is_null() || name.is_null() {
            return found;
        }
        // SAFETY: whoever asks for a name passes a C string.
        let Some(hook) = self.hook(unsafe { CStr::from_ptr(name) }) else { return found };
        // What the library itself has leads to every vendor; else it is one vendor's own, and we can keep one.
        let for_all = next(hook.name);
        let known = hook.real.load(Ordering::Acquire);
        if for_all.is_null() && !known.is_null() && known != found {
            return found;
        }
        hook.put_before(if for_all.is_null() { found } else { for_all })
    }

    /// The handle of the copy that the program uses: the one its functions came from. We never open one by name.
    fn copy(&self) -> *mut c_void {
        let known = self.copy.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let Some(handle) = self.hooks.iter().find_map(Hook::home) else { return known };
        self.copy.store(handle, Ordering::Release);
        handle
    }
}

/// Whether a library is in this process whose file has this name, or this name and a version.
pub(crate) fn is_loaded(file: &str) -> bool {
    loaded(file).is_some()
}

/// The path of the first library of this process whose file has this name, or this name and a version.
fn loaded(file: &str) -> Option<CString> {
    struct Search<'a> {
        file: &'a [u8],
        found: Option<CString>,
    }
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader passes its own record, and what we passed on to it below.
        let (path, search) = unsafe { ((*info).dlpi_name, &mut *search.cast::<Search<'_>>()) };
        if path.is_null() {
            return 0;
        }
        // SAFETY: a C string of the loader's, which unloads nothing while we are here.
        let path = unsafe { CStr::from_ptr(path) };
        let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match name.strip_prefix(search.file) {
            Some([] | [b'.', ..]) => search.found = Some(path.to_owned()),
            _ => return 0,
        }
        1
    }
    let mut search = Search { file: file.as_bytes(), found: None };
    // SAFETY: `look` gets what it expects, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// A function of the vendor's that we call ourselves, looked up in the copy the program uses: handles are worth nothing
/// in another.
pub(crate) struct Function<F> {
    library: &'static Library,
    real: RealFunction<F>,
}

impl<F: Copy> Function<F> {
    /// The function of this name.
    ///
    /// # Safety
    /// `F` is the type the vendor gave it.
    pub(crate) const unsafe fn new(library: &'static Library, name: &'static CStr) -> Self {
        Self { library, real: RealFunction::new(name) }
    }

    /// The function; none before the library is known, or if it lacks it.
    pub(crate) fn get(&self) -> Option<F> {
        // SAFETY: whoever made this vouched for the type. The loader answers with the function of the name, or null.
        unsafe { self.real.get(|name| self.library.find(name)) }
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks a symbol up as the loader does.
///
/// # Safety
/// As the loader's function of this name demands.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    naked_asm!(
        // Where the caller will go on: who it is.
        "mov rdx, qword ptr [rsp]",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "cmp rax, {nowhere}",
        "je 3f",
        "test rax, rax",
        "jne 2f",
        // The caller's own arguments and return address are in place: the real one sees its true caller.
        "mov rax, qword ptr [rip + {real}]",
        "jmp rax",
        "3:",
        "xor eax, eax",
        "2:",
        "ret",
        nowhere = const NOWHERE,
        decide = sym decide,
        real = sym REAL_DLSYM,
    )
}

/// Looks one version of a symbol up as the loader does.
///
/// # Safety
/// As the loader's function of this name demands.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlvsym(
    _handle: *mut c_void,
    _name: *const c_char,
    _version: *const c_char,
) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {decide}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        // As above.
        "mov rax, qword ptr [rip + {real}]",
        "jmp rax",
        "2:",
        "ret",
        decide = sym decide_version,
        real = sym REAL_DLVSYM,
    )
}

/// What [`decide`] answers if nobody has the function but we.
const NOWHERE: usize = 1;

/// Answers with our hook for a name of ours, and with null for every other.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char, caller: *const c_void) -> *mut c_void {
    let real = real_dlsym();
    // SAFETY: what the caller passed as a name.
    if is_everywhere(handle) && unsafe { is_ours_alone(name) } {
        // It leaves word of the failure, as it would without us.
        // SAFETY: a handle that the loader has for everybody, and a C string.
        let _ = unsafe { real(libc::RTLD_NEXT, name) };
        return std::ptr::without_provenance_mut(NOWHERE);
    }
    // SAFETY: as above.
    let Some(before) = (unsafe { before(handle, name, caller) }) else { return std::ptr::null_mut() };
    // SAFETY: these are the caller's own arguments.
    let found = unsafe { real(handle, name) };
    before.put(found)
}

/// The same for one version of a name. A library that has several is known to us by the first that was asked for; the
/// others are left alone.
unsafe extern "C" fn decide_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    let real = real_dlvsym();
    // SAFETY: what the caller passed as a name.
    let Some(before) = (unsafe { before(handle, name, std::ptr::null()) }) else {
        return std::ptr::null_mut();
    };
    // SAFETY: these are the caller's own arguments.
    let found = unsafe { real(handle, name, version) };
    match before {
        Before::Known(hook) if hook.is_of_another(found) => found,
        before => before.put(found),
    }
}

/// What stands before a function that is looked up.
enum Before {
    /// One of our hooks.
    Known(&'static Hook),
    /// A hook of the copy that the function is found in.
    OfCopy(crate::platforms::hip::StandsBefore),
}

impl Before {
    fn put(&self, found: *mut c_void) -> *mut c_void {
        match self {
            _ if found.is_null() => found,
            Self::Known(hook) => hook.put_before(found),
            Self::OfCopy(hook) => hook.put(found),
        }
    }
}

/// Whether a symbol is looked up in all libraries, or in all that come later.
fn is_everywhere(handle: *mut c_void) -> bool {
    handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT
}

/// Whether a name is that of a hook, and no library of this process has the function that it stands in front of. Programs
/// ask that way whether a vendor's library is there; and sanitizers look their functions up before those are set up, so no
/// other function is called for a name that is not ours.
///
/// # Safety
/// The name is a C string, or null.
unsafe fn is_ours_alone(name: *const c_char) -> bool {
    // SAFETY: the caller's word. What differs ends the comparison, so it never goes beyond the end of the name.
    let is = |start: &[u8]| (0..start.len()).all(|n| unsafe { *name.add(n) }.cast_unsigned() == start[n]);
    let hooked = |library: &&Library| library.hooks.iter().any(|hook| is(hook.name.to_bytes_with_nul()));
    if name.is_null()
        || !(LIBRARIES.iter().any(hooked) || crate::platforms::hip::NAMES_BEGIN.into_iter().any(is))
    {
        return false;
    }
    // SAFETY: by the caller's word, and not null.
    let name = unsafe { CStr::from_ptr(name) };
    hook_before(name).is_some() && elf::next_function(name).is_null()
}

/// What stands before what is looked up in a library; none for what is looked up in all of them, where we come first
/// anyway.
///
/// # Safety
/// The name is a C string, or null.
unsafe fn before(handle: *mut c_void, name: *const c_char, caller: *const c_void) -> Option<Before> {
    if name.is_null() || is_everywhere(handle) {
        return None;
    }
    // SAFETY: by the caller's word, and not null.
    let wanted = unsafe { CStr::from_ptr(name) };
    hook_before(wanted).filter(|_| !crate::platforms::opencl::is_asked_of_a_driver(wanted, caller))
}

/// What stands before a function of this name.
fn hook_before(name: &CStr) -> Option<Before> {
    if crate::duplicate_library::is_inactive_duplicate() {
        return None;
    }
    let hook = LIBRARIES.iter().find_map(|library| library.hook(name)).map(Before::Known);
    hook.or_else(|| crate::platforms::hip::stand_before(name).map(Before::OfCopy))
}

/// The function of this name in the libraries that come after ours, for programs that are linked to one of them; else
/// in any that is loaded.
pub(crate) fn next(name: &'static CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    let next = unsafe { real_dlsym()(libc::RTLD_NEXT, name.as_ptr()) };
    // The vendor's own is wanted, and not what another copy of ours has before it.
    let next = if elf::is_in_a_copy(next) { elf::next_function(name) } else { next };
    if next.is_null() { crate::loaded_libraries::find(name) } else { next }
}

/// The loader's own function.
pub(crate) fn real_dlsym() -> Dlsym {
    // SAFETY: the loader's `dlsym` has this type, and so has what stands in for it.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real(&REAL_DLSYM, c"dlsym")) }
}

fn real_dlvsym() -> Dlvsym {
    // SAFETY: as above, for `dlvsym`.
    unsafe { std::mem::transmute::<*mut c_void, Dlvsym>(real(&REAL_DLVSYM, c"dlvsym")) }
}

/// A function of the loader's, looked for once.
fn real(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    /// A loader without such a function: nothing can be found.
    extern "C" fn nothing() -> *mut c_void {
        std::ptr::null_mut()
    }
    let mut found = place.load(Ordering::Acquire);
    if found.is_null() {
        found = elf::libc_function(name);
        if found.is_null() {
            found = elf::next_function(name);
        }
        if found.is_null() {
            found = nothing as *mut c_void;
        }
        place.store(found, Ordering::Release);
    }
    found
}
