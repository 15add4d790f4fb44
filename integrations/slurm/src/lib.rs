//! `spank_xsched.so`: a plugin of Slurm that gives each job its priority, share and memory on the accelerators of its nodes.
//!
//! ```text
//!   srun, sbatch, salloc   --xsched-priority and the other options; what no partition permits is refused here
//!   slurmd, prolog         records the job's partition and QOS, which the user cannot forge
//!   slurmstepd, as root    preloads the library, and asks the service for a grant for the step's control group
//!   slurmd, epilog         ends what is left of the job
//! ```
//!
//! The plugin runs inside these programs: no panic leaves it, it starts no thread, prints only through Slurm's log, and waits for a
//! service that does not reply for less than half a second.

mod arguments;
mod cgroup;
mod job_record;
mod options;
mod preload;
mod refusal;
mod rules;
mod service;
mod sizes;
mod spank;
mod step;
mod submission;
mod users;

#[cfg(test)]
mod random_input;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use arguments::Config;
use rules::Place;
use spank::{Context, Handle, Spank};

/// The name of the plugin.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm's name")]
pub static plugin_name: [u8; 7] = *b"xsched\0";

/// The type of the plugin.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm's name")]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The version of Slurm for which it was built.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm's name")]
pub static plugin_version: c_uint = parse_version(env!("SLURM_VERSION_NUMBER"));

/// The version of the plugin's own interface.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm's name")]
pub static spank_plugin_version: c_uint = 1;

/// The same version for people and for `integrations/slurm/install`, which searches the file for it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "beside Slurm's names")]
pub static xsched_built_for_slurm: &str =
    concat!("xsched plugin for Slurm ", env!("SLURM_VERSION_TEXT"), "\n");

const fn parse_version(digits: &str) -> c_uint {
    let mut number = 0;
    let mut at = 0;
    while at < digits.len() {
        number = number * 10 + (digits.as_bytes()[at] - b'0') as c_uint;
        at += 1;
    }
    number
}

/// Runs a function of the plugin. A panic ends in Slurm's log: the job runs without a grant.
fn guarded(function: impl FnOnce() -> c_int) -> c_int {
    static SILENCE: Once = Once::new();
    // This replaces the hook of the plugin's own copy of the standard library; it would print on standard error.
    SILENCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    catch_unwind(AssertUnwindSafe(function)).unwrap_or_else(|_| {
        let _ = catch_unwind(|| spank::error("internal error: jobs run unscheduled"));
        spank::SUCCESS
    })
}

/// The arguments of the plugin in `plugstack.conf`.
///
/// # Safety
/// `argv` has `ac` C strings, or `ac` is 0.
unsafe fn config(ac: c_int, argv: *const *const c_char) -> Result<Config, String> {
    let count = if argv.is_null() { 0 } else { usize::try_from(ac).unwrap_or(0) };
    let arguments: Vec<_> = (0..count)
        .map(|index| {
            // SAFETY: the caller passes that many C strings.
            unsafe { CStr::from_ptr(*argv.add(index)) }.to_string_lossy().into_owned()
        })
        .collect();
    Config::parse(arguments.iter().map(String::as_str))
}

/// Defines a function that Slurm calls. It gets the plugin's arguments, or what is wrong with them.
macro_rules! hook {
    ($(#[$doc:meta])* $name:ident, $function:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Only Slurm calls it: with its handle, and with `ac` C strings in `argv`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: Handle, ac: c_int, argv: *const *const c_char) -> c_int {
            guarded(|| {
                // SAFETY: Slurm passes `ac` C strings.
                let config = unsafe { config(ac, argv) };
                let function: fn(&Spank, Result<Config, String>) -> c_int = $function;
                function(&Spank(handle), config)
            })
        }
    };
}

hook!(
    /// Registers the options, and checks the arguments.
    slurm_spank_init,
    |spank, config| {
        if matches!(spank::context(), Context::Srun | Context::Submission | Context::Step) {
            for option in &options::OPTIONS {
                if !spank.register(option) {
                    spank::error("Slurm does not accept the plugin's options");
                    return spank::ERROR;
                }
            }
        }
        match (config, spank::context()) {
            (Err(why), Context::Srun | Context::Submission) => {
                spank::error(&why);
                spank::ERROR
            }
            // An error would take the node out of service.
            (Err(why), Context::Other) => {
                spank::error(&why);
                spank::SUCCESS
            }
            // The first task reports it to the user.
            (Err(_), Context::Step) | (Ok(_), _) => spank::SUCCESS,
        }
    }
);

hook!(
    /// Refuses requests beyond the limits at submission, and sets the environment of steps.
    slurm_spank_init_post_opt,
    |spank, config| {
        // `slurm_spank_init` has reported invalid arguments, or the first task does.
        let Ok(config) = config else { return spank::SUCCESS };
        match spank::context() {
            Context::Srun | Context::Submission => check_submission(&config),
            Context::Step => {
                step::set_environment(spank, &config);
                spank::SUCCESS
            }
            Context::Other => spank::SUCCESS,
        }
    }
);

hook!(
    /// Refuses requests beyond the limits in `srun`, when it knows the partition of the job.
    slurm_spank_local_user_init,
    |_, config| config.map_or(spank::SUCCESS, |config| check_submission(&config))
);

fn check_submission(config: &Config) -> c_int {
    let arguments: Vec<_> = std::env::args_os().map(|text| text.to_string_lossy().into_owned()).collect();
    let place = submission::place(&arguments, |name| std::env::var(name).ok());
    match config.rules.refusal(&place, &options::received().request) {
        None => spank::SUCCESS,
        Some(why) => {
            spank::error(&why);
            spank::ERROR
        }
    }
}

hook!(
    /// Creates the grant of a step.
    slurm_spank_task_post_fork,
    |spank, config| {
        match config {
            Ok(config) => step::start(spank, &config, &options::received()),
            Err(why) => step::report_invalid_arguments(spank, &why),
        }
        spank::SUCCESS
    }
);

hook!(
    /// Fails the tasks of a refused step.
    slurm_spank_task_init,
    |spank, _| if step::may_run(spank) { spank::SUCCESS } else { spank::ERROR }
);

hook!(
    /// Ends the grant of a step.
    slurm_spank_exit,
    |spank, config| {
        if let (Context::Step, Ok(config)) = (spank::context(), config) {
            step::end(spank, &config);
        }
        spank::SUCCESS
    }
);

hook!(
    /// Records partition and QOS of a job. Never fails: slurmd would take the node out of service.
    slurm_spank_job_prolog,
    |spank, config| {
        if let (Some(job), Ok(config)) = (spank.job(), config) {
            let known = |name: &str| std::env::var(name).ok();
            let mut place = Place { partition: known("SLURM_JOB_PARTITION"), qos: known("SLURM_JOB_QOS") };
            if place.qos.is_none() && !config.rules.qos.is_empty() {
                match job_record::ask_controller_for_qos(job) {
                    Ok(qos) => place.qos = Some(qos),
                    Err(why) => spank::error(&format!("job {job}: its QOS is not known, it gets the least rights: {why}")),
                }
            }
            if let Err(why) = job_record::write(&config.state, job, &place) {
                let state = config.state.display();
                spank::error(&format!("job {job}: cannot record its partition in {state}, it gets the least rights: {why}"));
            }
        }
        spank::SUCCESS
    }
);

hook!(
    /// Ends what is left of a job. Never fails: slurmd would take the node out of service.
    slurm_spank_job_epilog,
    |spank, config| {
        if let (Some(job), Ok(config)) = (spank.job(), config) {
            step::end_job(job, &config, std::env::var("SLURMD_NODENAME").ok().as_deref());
        }
        spank::SUCCESS
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_does_not_leave_the_plugin() {
        assert_eq!(guarded(|| panic!("a defect")), spank::SUCCESS);
    }

    #[test]
    fn invalid_arguments_do_not_take_the_node_out_of_service() {
        let arguments = [c"color=red".as_ptr()];
        // SAFETY: one C string; the null handle is not used outside Slurm's programs.
        let result = unsafe { slurm_spank_init(std::ptr::null_mut(), 1, arguments.as_ptr()) };
        assert_eq!(result, spank::SUCCESS);
        // SAFETY: no arguments.
        assert_eq!(unsafe { slurm_spank_exit(std::ptr::null_mut(), 0, std::ptr::null()) }, spank::SUCCESS);
    }
}
