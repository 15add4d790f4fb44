//! The user's rights, the container, the job, and the kernel's access control.

use serde_json::json;

use super::{Check, Group, Machine};

const HERE: Group = Group::System;
const MACHINE_SERVICE_DIRECTORY: &str = "/run/xsched";

/// The user's rights; the container and the job that this process runs in, if any; what restricts its system calls.
pub(super) fn surroundings(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![rights(machine)];
    checks.extend(container(machine));
    checks.extend(job(machine));
    checks.extend(access_control(machine));
    checks
}

fn rights(machine: &Machine) -> Check {
    let name = "rights";
    let own = "in your own service you may change every task";
    if machine.uid == 0 {
        return Check::ok(HERE, name, "root: may change every task in every service");
    }
    match machine.group("xsched") {
        Some(group) if machine.gids.contains(&group) => {
            Check::ok(HERE, name, format!("in the group `xsched`: may raise priorities; {own}"))
        }
        Some(_) => Check::ok(
            HERE,
            name,
            format!(
                "not in the group `xsched`: in the machine's service you may only lower priorities of your own programs; {own}"
            ),
        ),
        None => Check::ok(
            HERE,
            name,
            format!(
                "the group `xsched` does not exist: only root may raise priorities in the machine's service; {own}"
            ),
        ),
    }
}

fn container(machine: &Machine) -> Option<Check> {
    let kind = kind_of_container(machine)?;
    let name = "container";
    if machine.has(&format!("{MACHINE_SERVICE_DIRECTORY}/socket"))
        || machine.variable("XSCHED_SOCKET").is_some()
    {
        let what = format!("{kind}, with the socket of a service");
        return Some(Check::ok(HERE, name, what).with_facts(json!({ "kind": kind })));
    }
    let check = Check::warning(
        HERE,
        name,
        format!(
            "{kind}, without the socket of the host's service: a service in this container schedules only programs in it"
        ),
        "if other containers or the host use the device, mount the host's socket: `-v /run/xsched:/run/xsched`",
    );
    Some(check.with_facts(json!({ "kind": kind })))
}

/// A job of a workload manager restricts devices by itself.
fn job(machine: &Machine) -> Option<Check> {
    machine.variable("SLURM_JOB_ID")?;
    let devices = ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
    let set: Vec<&str> = devices.into_iter().filter(|name| machine.variable(name).is_some()).collect();
    let visible = if set.is_empty() {
        "all devices are visible".to_owned()
    } else {
        format!("{} is set", set.join(", "))
    };
    let what = format!("a Slurm job; {visible}");
    Some(Check::ok(HERE, "job", what).with_facts(json!({ "kind": "Slurm", "visible": set })))
}

/// seccomp, `SELinux` and `AppArmor`, if one of them restricts this process.
fn access_control(machine: &Machine) -> Option<Check> {
    let status = machine.text("/proc/self/status").unwrap_or_default();
    let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    let is_filtered = seccomp == Some("2");
    let enforces = machine.text("/sys/fs/selinux/enforce").is_some_and(|text| text.trim() == "1");
    let label = machine.text("/proc/self/attr/current").unwrap_or_default();
    let label = label.trim_matches(['\0', '\n', ' ']);
    let profile = (!enforces && label.ends_with(')')).then_some(label);
    let parts = [
        is_filtered.then(|| "a seccomp filter".to_owned()),
        enforces
            .then(|| format!("SELinux (enforcing, {})", if label.is_empty() { "no label" } else { label })),
        profile.map(|profile| format!("the AppArmor profile {profile}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return None;
    }
    let facts = json!({ "seccomp": is_filtered, "selinux_enforcing": enforces, "apparmor": profile });
    let what = format!("this process is restricted by {}", parts.join(" and "));
    if enforces && label.contains("container") && machine.has("/dev/kfd") && !machine.may_use("/dev/kfd") {
        let do_next = "`sudo setsebool -P container_use_devices 1` on the host, or start the container with \
                       `--security-opt label=disable`";
        return Some(Check::problem(HERE, "access control", what, do_next).with_facts(facts));
    }
    Some(Check::ok(HERE, "access control", what).with_facts(facts))
}

fn kind_of_container(machine: &Machine) -> Option<&'static str> {
    let cgroups = machine.text("/proc/1/cgroup").unwrap_or_default();
    let cgroup_contains = |word: &str| cgroups.contains(word);
    if machine.variable("KUBERNETES_SERVICE_HOST").is_some() || cgroup_contains("kubepods") {
        Some("a Kubernetes pod")
    } else if machine.has("/.dockerenv") || cgroup_contains("docker") {
        Some("a Docker container")
    } else if machine.has("/run/.containerenv") || cgroup_contains("libpod") {
        Some("a Podman container")
    } else if machine.has("/.singularity.d") || machine.variable("APPTAINER_CONTAINER").is_some() {
        Some("an Apptainer container")
    } else if cgroup_contains("/lxc")
        || cgroup_contains("containerd")
        || machine.variable("container").is_some()
    {
        Some("a container")
    } else {
        None
    }
}
