//! The versions of `ROCm` on this machine.

use serde_json::json;

use super::HERE;
use crate::doctor::{Check, Machine};

/// From this version on, AMD's runtimes pass their API tables to tools.
const FIRST_WITH_TABLE: (u32, u32) = (6, 2);
/// The newest version that `scripts/rocm-clients` runs.
const NEWEST_TESTED: (u32, u32) = (7, 2);

/// One finding for each installed version. Without any, one finding if there is a GPU.
pub(super) fn probe(machine: &Machine, has_gpu: bool) -> Vec<Check> {
    let is_rocm = |name: &String| name.starts_with("rocm");
    let directories = machine.names_in("/opt").into_iter().filter(is_rocm).map(|name| format!("/opt/{name}"));
    // `/opt/rocm` is usually a link to a directory with a version.
    let mut seen = Vec::new();
    let is_new = |directory: &String| {
        let real = machine.at(directory).canonicalize().unwrap_or_default();
        let is_new = !seen.contains(&real);
        seen.push(real);
        is_new
    };
    let mut checks: Vec<_> =
        directories.filter(is_new).map(|directory| examine(machine, &directory)).collect();
    checks.extend(packaged(machine));
    if checks.is_empty() && has_gpu {
        let what = "no ROCm in /opt/rocm or the system's library directory: programs use the runtime in their Python packages";
        checks.push(Check::ok(HERE, "rocm", what).with_facts(json!({ "version": null })));
    }
    checks
}

fn examine(machine: &Machine, directory: &str) -> Check {
    let read = |file: &str| machine.text(&format!("{directory}/.info/{file}"));
    let version = read("version").or_else(|| read("version-rocm")).or_else(|| version_in_name(directory));
    judge(directory, version.as_deref().map(str::trim))
}

fn version_in_name(directory: &str) -> Option<String> {
    let version = directory.strip_prefix("/opt/rocm-")?;
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

/// The runtime of a distribution's packages, by the name of its file: `libamdhip64.so.6.4.43484`.
fn packaged(machine: &Machine) -> Option<Check> {
    let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"].into_iter().find_map(|directory| {
        let version = |name: &String| {
            let version = name.strip_prefix("libamdhip64.so.")?;
            version.contains('.').then(|| version.to_owned())
        };
        Some((directory, machine.names_in(directory).iter().filter_map(version).next_back()?))
    });
    found.map(|(directory, version)| judge(directory, Some(&version)))
}

fn judge(directory: &str, version: Option<&str>) -> Check {
    let name = "rocm";
    let mut parts = version.unwrap_or_default().split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let facts = json!({ "version": version, "directory": directory });
    let Some(number) = parts.next().zip(parts.next()) else {
        let what = format!("{directory} has no version that can be read");
        let do_next =
            "XSched works with ROCm 6.2 and newer; `scripts/verify --platform hip` shows what works";
        return Check::warning(HERE, name, what, do_next).with_facts(facts);
    };
    let title = format!("ROCm {} in {directory}", version.unwrap_or_default());
    let check = if number < FIRST_WITH_TABLE {
        let (major, minor) = FIRST_WITH_TABLE;
        let what = format!(
            "{title}: older than {major}.{minor}, so its programs are intercepted by the names of its functions only"
        );
        let do_next = "install ROCm 6.2 or newer, or PyTorch's own packages, which contain a newer runtime";
        Check::warning(HERE, name, what, do_next)
    } else if number.0 > NEWEST_TESTED.0 {
        let (major, minor) = NEWEST_TESTED;
        let what =
            format!("{title}: newer than {major}.{minor}, the newest version that XSched was tested with");
        let do_next = "`scripts/verify --platform hip` shows what works; send its report";
        Check::warning(HERE, name, what, do_next)
    } else {
        Check::ok(HERE, name, title)
    };
    check.with_facts(facts)
}
