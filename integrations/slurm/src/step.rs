//! The plugin in `slurmstepd`, as root: gives the processes of a step their rights, and ends these with the step.
//!
//! ```text
//!   before the tasks exist     set_environment   LD_PRELOAD and XSCHED_* of the job
//!   first task forked          start             its control group is known, and it has not executed its program yet: Grant
//!   the step ends              end               Revoke
//!   slurmstepd is killed       -                 the service ends the grant with this process, or with the control group
//! ```

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use xsched_ipc::environment::validate_name;
use xsched_ipc::protocol::Grant;

use crate::arguments::{Config, Excess};
use crate::cgroup::{self, StepCgroup};
use crate::options::Received;
use crate::rules::{Place, Rights};
use crate::spank::{self, Spank};
use crate::{job_record, preload, refusal, service, users};

/// The secret by which the processes of this step have their grant where Slurm uses no control groups.
static TOKEN: OnceLock<String> = OnceLock::new();
/// This process has created a grant.
static HAS_GRANT: AtomicBool = AtomicBool::new(false);

/// Why the step must not run.
#[derive(Debug)]
struct StepRefused(String);

/// A step on this node.
#[derive(Clone, Copy, Debug)]
struct Step {
    job: u32,
    id: u32,
    uid: u32,
}

impl Step {
    /// The step that `slurmstepd` runs; none if it only contains the processes of other programs, such as ssh.
    fn of(spank: &Spank) -> Option<Self> {
        let step = Self { job: spank.job()?, id: spank.step()?, uid: spank.uid()? };
        (step.id != EXTERN_STEP).then_some(step)
    }

    /// The name of its grant: `slurm-7.0`, with the node's name if that is not the name of the machine.
    fn grant_name(self, node: Option<&str>) -> String {
        let node = node.filter(|node| *node != users::hostname());
        let suffix = node.map(|node| format!("@{node}")).unwrap_or_default();
        format!("slurm-{}.{}{suffix}", self.job, step_name(self.id))
    }
}

const INTERACTIVE_STEP: u32 = 0xffff_fffa;
const BATCH_STEP: u32 = 0xffff_fffb;
const EXTERN_STEP: u32 = 0xffff_fffc;

fn step_name(step: u32) -> String {
    match step {
        INTERACTIVE_STEP => "interactive".to_owned(),
        BATCH_STEP => "batch".to_owned(),
        EXTERN_STEP => "extern".to_owned(),
        number => number.to_string(),
    }
}

/// Sets the variables of the job's environment.
pub(crate) fn set_environment(spank: &Spank, config: &Config) {
    let Some(step) = Step::of(spank) else { return };
    if !refusal::prepare() {
        spank::error(&format!("job {}: out of memory, it cannot be refused", step.job));
    }
    let set = |name: &CStr, value: &str| {
        if !spank.set_variable(name, value) {
            spank::error(&format!("job {}: cannot set {} for it", step.job, name.to_string_lossy()));
        }
    };
    set(c"XSCHED_SOCKET", &config.socket.to_string_lossy());
    if spank.variable(c"XSCHED_NAME").is_none() {
        let name = spank.variable(c"SLURM_JOB_NAME").and_then(|name| validate_name(&name).ok());
        set(c"XSCHED_NAME", &name.unwrap_or_else(|| step.grant_name(None)));
    }
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if !cgroup::is_in_job(&own, step.job)
        && let Some(token) = users::random_token()
    {
        set(c"XSCHED_GRANT", TOKEN.get_or_init(|| token));
    }
    if !config.preloads {
        return;
    }
    match config.library() {
        Ok(library) => {
            let before = |name: &CStr| spank.variable(name).unwrap_or_default();
            set(c"LD_PRELOAD", &preload::with_library(&library, &before(c"LD_PRELOAD")));
            set(c"HSA_TOOLS_LIB", &preload::with_tool(&library, &before(c"HSA_TOOLS_LIB")));
            set(c"XSCHED_SCHEDULER", "GLB");
            set(c"XSCHED_AUTO_XQUEUE", "ON");
        }
        Err(why) => spank::error(&format!("job {} runs unscheduled: {why}", step.job)),
    }
}

/// Called for each task, before the task executes its program: the first task creates the grant of the step for all.
pub(crate) fn start(spank: &Spank, config: &Config, received: &Received) {
    if let (Some(step), Some(0)) = (Step::of(spank), spank.local_task())
        && let Err(StepRefused(why)) = create_grant(spank, config, received, step)
    {
        refusal::refuse(&why);
    }
}

/// The arguments of the plugin on this node are invalid: the step has no grant. An error would take the node out of service.
pub(crate) fn report_invalid_arguments(spank: &Spank, why: &str) {
    if let (Some(step), Some(0)) = (Step::of(spank), spank.local_task()) {
        spank::error(&format!("job {} runs unscheduled on {}: {why}", step.job, users::hostname()));
    }
}

/// Whether the task may execute its program. Called in the task, after [`start`].
pub(crate) fn may_run(spank: &Spank) -> bool {
    let Some(why) = refusal::reason() else { return true };
    if spank.local_task() == Some(0) {
        spank::error(&why);
    }
    false
}

fn create_grant(spank: &Spank, config: &Config, received: &Received, step: Step) -> Result<(), StepRefused> {
    let place = job_record::read(&config.state, step.job);
    let rights = rights(spank, config, received, step, &place)?;
    let cgroup = spank
        .task_pid()
        .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok())
        .and_then(|text| cgroup::of_step(&text, step.job));
    let granted = match (&cgroup, TOKEN.get()) {
        (None, None) => Err("its control group is not known".to_owned()),
        _ => service::grant(&config.socket, grant(spank, config, step, &rights, &place, cgroup.as_ref()))
            .map_err(|error| error.to_string()),
    };
    match granted {
        Ok(()) => {
            HAS_GRANT.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(why) if config.requires_service => {
            Err(StepRefused(format!("job {} is refused on {}: {why}", step.job, users::hostname())))
        }
        Err(why) => {
            spank::error(&format!("job {} runs unscheduled on {}: {why}", step.job, users::hostname()));
            Ok(())
        }
    }
}

/// What the step gets. Reports what it requested in vain.
fn rights(
    spank: &Spank,
    config: &Config,
    received: &Received,
    step: Step,
    place: &Place,
) -> Result<Rights, StepRefused> {
    // Slurm sets it for a job with shards, whatever the user's environment contains. Without shards, a value of the user only
    // limits the user's own job.
    let shards = spank
        .variable(c"SLURM_SHARDS_ON_NODE")
        .and_then(|count| count.parse().ok())
        .filter(|count| *count > 0);
    let (share, memory) = shards.map_or((None, None), |count| config.shards(count));
    let (rights, excess) =
        config.rules.apply(place, &received.request, |rule| rule.within_shards(share, memory));
    let invalid =
        received.invalid.iter().map(|why| (format!("job {}: {why}", step.job), "the option is ignored"));
    let described = |why| format!("job {}: {why}{}", step.job, place.describe());
    let excess = excess.iter().map(|why| (described(why), "the job gets the limit"));
    for (described, consequence) in invalid.chain(excess) {
        if config.excess == Excess::Refuse {
            return Err(StepRefused(format!("{described}: the step is refused")));
        }
        spank::notice(&format!("{described}: {consequence}"));
    }
    Ok(rights)
}

fn grant(
    spank: &Spank,
    config: &Config,
    step: Step,
    rights: &Rights,
    place: &Place,
    cgroup: Option<&StepCgroup>,
) -> Grant {
    let node = cgroup.and_then(|cgroup| cgroup.node.clone());
    let mut labels = BTreeMap::from([
        ("job".to_owned(), step.job.to_string()),
        ("step".to_owned(), step_name(step.id)),
        ("user".to_owned(), users::name_of(step.uid)),
        ("node".to_owned(), node.clone().unwrap_or_else(users::hostname)),
    ]);
    if let Some(partition) = &place.partition {
        labels.insert("partition".to_owned(), partition.clone());
    }
    if let Some(qos) = place.qos.as_ref().filter(|qos| !qos.is_empty()) {
        labels.insert("qos".to_owned(), qos.clone());
    }
    if let Some((array, task)) = spank.array() {
        labels.insert("array_job".to_owned(), array.to_string());
        labels.insert("array_task".to_owned(), task.to_string());
    }
    Grant {
        name: step.grant_name(node.as_deref()),
        cgroup: cgroup.map(|cgroup| cgroup.path.clone()),
        token: TOKEN.get().cloned(),
        uid: Some(step.uid),
        priority: Some(rights.priority),
        share: rights.share,
        memory: rights.memory,
        is_job: config.joins_tasks && spank.local_task_count() > 1,
        until_exit_of: Some(std::process::id()),
        labels,
    }
}

/// Ends the grant of the step.
pub(crate) fn end(spank: &Spank, config: &Config) {
    // A child that failed to execute the task's program ends here too, and its step continues.
    if !HAS_GRANT.load(Ordering::Relaxed) || spank.task_pid().is_some() {
        return;
    }
    let Some(step) = Step::of(spank) else { return };
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let node = cgroup::node_of_job(&own, step.job);
    // The service ends it anyway when this process exits.
    let _ = service::revoke(&config.socket, &step.grant_name(node.as_deref()));
}

/// Ends what is left of a job on this node, in slurmd's epilog.
pub(crate) fn end_job(job: u32, config: &Config, node: Option<&str>) {
    let label = job.to_string();
    let is_of_job = |grant: &Grant| {
        let has = |name: &str, value: &str| grant.labels.get(name).is_some_and(|label| label == value);
        grant.name.starts_with(&format!("slurm-{job}."))
            && has("job", &label)
            && (has("node", &users::hostname()) || node.is_some_and(|node| has("node", node)))
    };
    // Without a service there is nothing to end.
    let _ = service::revoke_all(&config.socket, is_of_job);
    job_record::remove(&config.state, job);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_named_after_job_step_and_node() {
        let named = |id, node| Step { job: 7, id, uid: 0 }.grant_name(node);
        assert_eq!(named(0, None), "slurm-7.0");
        assert_eq!(named(BATCH_STEP, Some("other-node")), "slurm-7.batch@other-node");
        assert_eq!(named(INTERACTIVE_STEP, Some(&users::hostname())), "slurm-7.interactive");
    }
}
