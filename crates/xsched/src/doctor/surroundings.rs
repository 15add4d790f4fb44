//! Who is asking, and from where.

use super::{Check, Group, Machine};

const HERE: Group = Group::System;
const SERVICE_OF_THE_MACHINE: &str = "/run/xsched";

/// The user's rights, and the container if we are in one.
pub(super) fn surroundings(machine: &Machine) -> Vec<Check> {
    let mut checks = vec![rights(machine)];
    checks.extend(container(machine));
    checks
}

fn rights(machine: &Machine) -> Check {
    let name = "rights";
    let own = "in a scheduler of your own you may change everything";
    if machine.uid == 0 {
        return Check::ok(HERE, name, "root: may change everything in every scheduler");
    }
    match machine.group("xsched") {
        Some(group) if machine.gids.contains(&group) => {
            Check::ok(HERE, name, format!("in the group `xsched`: may raise priorities; {own}"))
        }
        Some(_) => Check::ok(
            HERE,
            name,
            format!(
                "not in the group `xsched`: in the machine's scheduler you may only lower your own; {own}"
            ),
        ),
        None => Check::ok(
            HERE,
            name,
            format!("no group `xsched`: only root may raise priorities in the machine's scheduler; {own}"),
        ),
    }
}

fn container(machine: &Machine) -> Option<Check> {
    let kind = kind_of_container(machine)?;
    let name = "container";
    if machine.has(&format!("{SERVICE_OF_THE_MACHINE}/socket")) || machine.variable("XSCHED_SOCKET").is_some()
    {
        return Some(Check::ok(HERE, name, format!("{kind}, with a scheduler's socket in it")));
    }
    Some(Check::warning(
        HERE,
        name,
        format!("{kind}, without the host's scheduler: one started in here sees only programs in here"),
        "if others share the device, mount the host's socket: `-v /run/xsched:/run/xsched`",
    ))
}

fn kind_of_container(machine: &Machine) -> Option<&'static str> {
    let cgroups = machine.text("/proc/1/cgroup").unwrap_or_default();
    let within = |word: &str| cgroups.contains(word);
    if machine.variable("KUBERNETES_SERVICE_HOST").is_some() || within("kubepods") {
        Some("a Kubernetes pod")
    } else if machine.has("/.dockerenv") || within("docker") {
        Some("a Docker container")
    } else if machine.has("/run/.containerenv") || within("libpod") {
        Some("a Podman container")
    } else if within("/lxc") || within("containerd") || machine.variable("container").is_some() {
        Some("a container")
    } else {
        None
    }
}
