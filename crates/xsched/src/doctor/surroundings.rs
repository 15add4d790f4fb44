//! The user's rights, and the container.

use super::{Check, Group, Machine};

const HERE: Group = Group::System;
const MACHINE_SERVICE_DIRECTORY: &str = "/run/xsched";

/// The user's rights, and the container that this process runs in, if any.
pub(super) fn surroundings(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![rights(machine)];
    checks.extend(container(machine));
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
        return Some(Check::ok(HERE, name, format!("{kind}, with the socket of a service")));
    }
    Some(Check::warning(
        HERE,
        name,
        format!(
            "{kind}, without the socket of the host's service: a service in this container schedules only programs in it"
        ),
        "if other containers or the host use the device, mount the host's socket: `-v /run/xsched:/run/xsched`",
    ))
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
    } else if cgroup_contains("/lxc")
        || cgroup_contains("containerd")
        || machine.variable("container").is_some()
    {
        Some("a container")
    } else {
        None
    }
}
