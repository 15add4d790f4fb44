//! The options of `srun`, `sbatch` and `salloc`. Slurm passes them to `slurmstepd`, and checks nothing on the way: they are parsed at
//! both ends.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;

use crate::rules::{Request, parse_priority, parse_share};
use crate::sizes::parse_size;
use crate::spank::{self, SpankOption};

/// The options that this process received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) request: Request,
    /// What is wrong with values that reached `slurmstepd` all the same.
    pub(crate) invalid: Vec<String>,
}

static RECEIVED: Mutex<Option<Received>> = Mutex::new(None);

const PRIORITY: c_int = 1;
const SHARE: c_int = 2;
const MEMORY: c_int = 3;

/// The options, as Slurm wants them.
pub(crate) static OPTIONS: [SpankOption; 3] = [
    SpankOption {
        name: c"xsched-priority".as_ptr(),
        arginfo: c"N".as_ptr(),
        usage: c"priority on the accelerator: -255 to 255, low, normal or high".as_ptr(),
        has_arg: 1,
        val: PRIORITY,
        cb: Some(receive),
    },
    SpankOption {
        name: c"xsched-share".as_ptr(),
        arginfo: c"PERCENT".as_ptr(),
        usage: c"share of the accelerator's time that each process of the job gets".as_ptr(),
        has_arg: 1,
        val: SHARE,
        cb: Some(receive),
    },
    SpankOption {
        name: c"xsched-memory".as_ptr(),
        arginfo: c"SIZE".as_ptr(),
        usage: c"accelerator memory of the step on each device of a node, such as 20G".as_ptr(),
        has_arg: 1,
        val: MEMORY,
        cb: Some(receive),
    },
];

/// What this process has received so far.
pub(crate) fn received() -> Received {
    RECEIVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone().unwrap_or_default()
}

/// Slurm calls this for each option, in `srun`, `sbatch` and `salloc` and again in `slurmstepd`.
extern "C" fn receive(option: c_int, value: *const c_char, remote: c_int) -> c_int {
    crate::guarded(|| {
        // SAFETY: Slurm passes a C string, or null.
        let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) });
        let text = value.map(CStr::to_string_lossy).unwrap_or_default();
        let mut received = RECEIVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let received = received.get_or_insert_default();
        match set(&mut received.request, option, text.trim()) {
            Ok(()) => spank::SUCCESS,
            Err(why) if remote == 0 => {
                spank::error(&why);
                spank::ERROR
            }
            Err(why) => {
                // Slurm calls this twice for the same option.
                if !received.invalid.contains(&why) {
                    received.invalid.push(why);
                }
                spank::SUCCESS
            }
        }
    })
}

fn set(request: &mut Request, option: c_int, text: &str) -> Result<(), String> {
    let named = |name: &'static str| move |why: String| format!("{name}: {why}");
    match option {
        PRIORITY => {
            request.priority = Some(parse_priority(text).map_err(named("--xsched-priority"))?);
        }
        SHARE => request.share = Some(parse_share(text).map_err(named("--xsched-share"))?),
        MEMORY => request.memory = Some(parse_size(text).map_err(named("--xsched-memory"))?),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_invalid_ones_named() {
        let mut request = Request::default();
        set(&mut request, PRIORITY, "high").unwrap();
        set(&mut request, SHARE, "40%").unwrap();
        set(&mut request, MEMORY, "20G").unwrap();
        assert_eq!(request, Request { priority: Some(100), share: Some(40), memory: Some(20 << 30) });
        for (option, text, name) in [
            (PRIORITY, "urgent", "--xsched-priority"),
            (SHARE, "0", "--xsched-share"),
            (MEMORY, "20", "--xsched-memory"),
        ] {
            let error = set(&mut request, option, text).unwrap_err();
            assert!(error.starts_with(name) && error.contains(text), "{error}");
        }
        assert_eq!(request.priority, Some(100), "an invalid value changes nothing");
    }

    #[test]
    fn invalid_option_is_refused_at_submission_and_reported_on_the_node() {
        assert_eq!(receive(SHARE, c"150".as_ptr(), 0), spank::ERROR);
        assert_eq!(receive(SHARE, c"150".as_ptr(), 1), spank::SUCCESS);
        assert_eq!(receive(SHARE, c"150".as_ptr(), 1), spank::SUCCESS);
        assert_eq!(receive(PRIORITY, std::ptr::null(), 1), spank::SUCCESS);
        assert_eq!(received().invalid.len(), 2, "{:?}", received().invalid);
        assert_eq!(received().request.share, None);
    }
}
