//! The part of Slurm's plugin interface (`slurm/spank.h`) that the plugin uses.
//!
//! Slurm's programs export the functions. They are looked up by name when they are called, so that the plugin builds, and its
//! tests run, without Slurm.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// `spank_t`: what Slurm passes to every function of the plugin.
pub(crate) type Handle = *mut c_void;

/// The result of a function of the plugin, and of Slurm's functions.
pub(crate) const SUCCESS: c_int = 0;
pub(crate) const ERROR: c_int = -1;

/// In which of Slurm's programs the plugin runs: `spank_context_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// `srun`, as the user.
    Srun,
    /// `slurmstepd`, as root.
    Step,
    /// `sbatch` or `salloc`, as the user.
    Submission,
    /// `slurmd`, and the programs that it starts before and after a job.
    Other,
}

/// Numbers of `spank_item_t`. Slurm only appends to that list.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Item {
    JobUid = 0,
    JobId = 2,
    StepId = 3,
    LocalTaskCount = 7,
    LocalTaskId = 11,
    TaskPid = 14,
    ArrayId = 30,
    ArrayTaskId = 31,
}

/// Slurm's `NO_VAL`: no value.
const NO_VALUE: u32 = 0xffff_fffe;

/// `struct spank_option`.
#[repr(C)]
pub(crate) struct SpankOption {
    pub(crate) name: *const c_char,
    pub(crate) arginfo: *const c_char,
    pub(crate) usage: *const c_char,
    pub(crate) has_arg: c_int,
    pub(crate) val: c_int,
    pub(crate) cb: Option<extern "C" fn(val: c_int, optarg: *const c_char, remote: c_int) -> c_int>,
}

// SAFETY: the pointers are to constant strings.
unsafe impl Sync for SpankOption {}

type GetItem = unsafe extern "C" fn(Handle, c_int, ...) -> c_int;
type GetEnv = unsafe extern "C" fn(Handle, *const c_char, *mut c_char, c_int) -> c_int;
type SetEnv = unsafe extern "C" fn(Handle, *const c_char, *const c_char, c_int) -> c_int;
type Register = unsafe extern "C" fn(Handle, *const SpankOption) -> c_int;
type GetContext = unsafe extern "C" fn() -> c_int;
type Log = unsafe extern "C" fn(*const c_char, ...);

/// The address of one of Slurm's functions; none outside Slurm's programs.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// The function of this name, with the type that `slurm/spank.h` declares.
macro_rules! function {
    ($name:literal, $type:ty) => {
        find($name).map(|address| {
            // SAFETY: `slurm/spank.h` declares the function of this name with this type.
            unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
        })
    };
}

/// In which program the plugin runs.
pub(crate) fn context() -> Context {
    let Some(context) = function!(c"spank_context", GetContext) else { return Context::Other };
    // SAFETY: the function has no arguments.
    match unsafe { context() } {
        1 => Context::Srun,
        2 => Context::Step,
        3 => Context::Submission,
        _ => Context::Other,
    }
}

/// Reports an error: on the terminal of `srun` and `sbatch`, in the job's standard error, or in slurmd's log.
pub(crate) fn error(message: &str) {
    log(function!(c"slurm_error", Log), message);
}

/// Reports something that is not an error at the same places.
pub(crate) fn notice(message: &str) {
    // Slurm before 20.11 has only the other function.
    log(function!(c"slurm_spank_log", Log).or(function!(c"slurm_error", Log)), message);
}

fn log(function: Option<Log>, message: &str) {
    let line: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if let (Some(function), Ok(line)) = (function, CString::new(format!("xsched: {line}"))) {
        // SAFETY: the format takes one C string.
        unsafe { function(c"%s".as_ptr(), line.as_ptr()) };
    }
}

/// Slurm's handle, valid during one call of a function of the plugin.
pub(crate) struct Spank(pub(crate) Handle);

impl Spank {
    /// Adds an option to `srun`, `sbatch` and `salloc`. Only `slurm_spank_init` may call this.
    pub(crate) fn register(&self, option: &'static SpankOption) -> bool {
        function!(c"spank_option_register", Register).is_some_and(|register| {
            // SAFETY: the option is constant and lives as long as the plugin; the handle is Slurm's own.
            unsafe { register(self.0, option) == SUCCESS }
        })
    }

    fn item(&self, item: Item) -> Option<u32> {
        let get = function!(c"spank_get_item", GetItem)?;
        let mut value = 0_u32;
        // SAFETY: every item of the enumeration is an integer of 32 bits, and Slurm writes it to the address that follows.
        let result = unsafe { get(self.0, item as c_int, &raw mut value) };
        (result == SUCCESS).then_some(value)
    }

    pub(crate) fn job(&self) -> Option<u32> {
        self.item(Item::JobId)
    }

    pub(crate) fn step(&self) -> Option<u32> {
        self.item(Item::StepId)
    }

    pub(crate) fn uid(&self) -> Option<u32> {
        self.item(Item::JobUid)
    }

    /// How many tasks the step has on this node.
    pub(crate) fn local_task_count(&self) -> u32 {
        self.item(Item::LocalTaskCount).unwrap_or(1)
    }

    /// Which task of this node the call is about.
    pub(crate) fn local_task(&self) -> Option<u32> {
        self.item(Item::LocalTaskId)
    }

    pub(crate) fn task_pid(&self) -> Option<u32> {
        self.item(Item::TaskPid)
    }

    /// The job id of the array and the number in it.
    pub(crate) fn array(&self) -> Option<(u32, u32)> {
        let task = self.item(Item::ArrayTaskId).filter(|task| *task != NO_VALUE)?;
        Some((self.item(Item::ArrayId).filter(|id| *id != 0)?, task))
    }

    /// A variable of the job's environment.
    pub(crate) fn variable(&self, name: &CStr) -> Option<String> {
        let get = function!(c"spank_getenv", GetEnv)?;
        let mut buffer = vec![0_u8; 128 * 1024];
        let size = c_int::try_from(buffer.len()).ok()?;
        // SAFETY: Slurm writes a C string of at most `size` bytes into the buffer, which has that size.
        let result = unsafe { get(self.0, name.as_ptr(), buffer.as_mut_ptr().cast(), size) };
        if result != SUCCESS {
            return None;
        }
        CStr::from_bytes_until_nul(&buffer).ok()?.to_str().ok().map(str::to_owned)
    }

    /// Sets a variable of the job's environment.
    pub(crate) fn set_variable(&self, name: &CStr, value: &str) -> bool {
        let (Some(set), Ok(value)) = (function!(c"spank_setenv", SetEnv), CString::new(value)) else {
            return false;
        };
        // SAFETY: both are C strings, which Slurm copies.
        unsafe { set(self.0, name.as_ptr(), value.as_ptr(), 1) == SUCCESS }
    }
}
