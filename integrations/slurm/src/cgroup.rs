//! The control group of a step, from `/proc/PID/cgroup` of one of its tasks.
//!
//! ```text
//!   cgroup/v1, each hierarchy that Slurm uses    6:freezer:/slurm_n1/uid_1000/job_7/step_0/task_0
//!   cgroup/v2                                    0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0
//!                                                  the step: ...................../job_7/step_0
//! ```

/// The control group of a step, and the node if its path names one: several slurmd on one machine have a tree each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepCgroup {
    pub(crate) path: String,
    pub(crate) node: Option<String>,
}

/// The control group of the step of `job` to which a process belongs; none if Slurm does not use control groups.
pub(crate) fn of_step(proc_cgroup: &str, job: u32) -> Option<StepCgroup> {
    proc_cgroup.lines().find_map(|line| {
        let mut components = path_of(line)?.split('/').skip(1);
        let mut path = String::new();
        let mut node = None;
        loop {
            let component = components.next()?;
            path.push('/');
            path.push_str(component);
            if component == format!("job_{job}") {
                break;
            }
            let named = component.strip_prefix("slurm_").or(component.strip_suffix("_slurmstepd.scope"));
            node = named.map(str::to_owned).or(node);
        }
        let step = components.next().filter(|component| component.starts_with("step_"))?;
        Some(StepCgroup { path: format!("{path}/{step}"), node })
    })
}

/// The node that the control group of a process of this job names.
pub(crate) fn node_of_job(proc_cgroup: &str, job: u32) -> Option<String> {
    let with_step = |line: &str| of_step(&format!("{line}/step_x"), job).or_else(|| of_step(line, job));
    proc_cgroup.lines().find_map(with_step)?.node
}

/// Whether Slurm put a process into a control group of this job.
pub(crate) fn is_in_job(proc_cgroup: &str, job: u32) -> bool {
    let component = format!("job_{job}");
    proc_cgroup.lines().filter_map(path_of).any(|path| path.split('/').any(|part| part == component))
}

fn path_of(line: &str) -> Option<&str> {
    line.splitn(3, ':').nth(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_is_found_in_every_layout() {
        let found = |text: &str| of_step(text, 7).map(|found| (found.path, found.node.unwrap_or_default()));
        let v1 = "9:name=systemd:/\n6:freezer:/slurm_n1/uid_0/job_7/step_batch\n0::/\n";
        assert_eq!(found(v1), Some(("/slurm_n1/uid_0/job_7/step_batch".to_owned(), "n1".to_owned())));
        let tasks = "4:memory:/slurm/uid_1000/job_7/step_0/task_1";
        assert_eq!(found(tasks), Some(("/slurm/uid_1000/job_7/step_0".to_owned(), String::new())));
        let v2 = "0::/system.slice/slurmstepd.scope/job_7/step_interactive/user/task_0\n";
        let path = "/system.slice/slurmstepd.scope/job_7/step_interactive";
        assert_eq!(found(v2), Some((path.to_owned(), String::new())));
        let v2_node = "0::/system.slice/n2_slurmstepd.scope/job_7/step_3/slurm";
        assert_eq!(found(v2_node).unwrap().1, "n2");
    }

    #[test]
    fn other_groups_are_not_mistaken_for_the_step() {
        for text in [
            "",
            "0::/",
            "0::/user.slice",
            "6:freezer:/slurm/uid_0/job_71/step_0",
            "6:freezer:/slurm/uid_0/job_7",
        ] {
            assert_eq!(of_step(text, 7), None, "{text}");
        }
        assert!(
            is_in_job("6:freezer:/slurm/uid_0/job_7", 7) && !is_in_job("6:freezer:/slurm/uid_0/job_71", 7)
        );
    }
}
