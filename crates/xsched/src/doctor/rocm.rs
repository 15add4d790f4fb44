//! AMD's runtimes on this machine: in which way their programs are reached.

use super::platform::Platform;
use super::{Check, Group, Machine};

const HERE: Group = Group::Devices;

/// One line for each runtime that is installed where runtimes usually are. Those that Python packages bring along lie with
/// them; AMD's own builds are all alike.
pub(super) fn rocm(machine: &Machine) -> Vec<Check> {
    if !machine.driven.contains(&Platform::Hip) {
        return Vec::new();
    }
    runtimes(machine).iter().map(|runtime| examine(machine, runtime)).collect()
}

/// Files that are runtimes, each once.
fn runtimes(machine: &Machine) -> Vec<String> {
    let of_amd = machine.names_in("/opt").into_iter().filter(|name| name.starts_with("rocm"));
    let mut places: Vec<_> = of_amd.map(|name| format!("/opt/{name}/lib")).collect();
    places.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"].map(str::to_owned));
    let mut found: Vec<(std::path::PathBuf, String)> = Vec::new();
    for place in places {
        for name in machine.names_in(&place).iter().filter(|name| name.starts_with("libamdhip64.so.")) {
            let path = format!("{place}/{name}");
            let file = machine.at(&path).canonicalize().unwrap_or_default();
            // The first name of a file is the shortest.
            if !found.iter().any(|(known, _)| *known == file) {
                found.push((file, path));
            }
        }
    }
    found.into_iter().map(|(_, path)| path).collect()
}

fn examine(machine: &Machine, runtime: &str) -> Check {
    let name = format!("amd {}", runtime.rsplit('/').next().unwrap_or(runtime));
    if machine.variable("HSA_TOOLS_LIB").is_some()
        || machine.variable("ROCPROFILER_REGISTER_LIBRARY").is_some()
    {
        let what =
            format!("{runtime}: another tool is named in the environment and may take its table before us");
        let do_next = "nothing breaks: what is found by name is scheduled; unset HSA_TOOLS_LIB and \
                       ROCPROFILER_REGISTER_LIBRARY for the better way";
        return Check::warning(HERE, name, what, do_next);
    }
    let way = if hands_out_its_table(machine, runtime) {
        "by its own table, which it hands to tools (rocprofiler-register): the best way there is"
    } else {
        "by the names of its functions, for it was built without rocprofiler-register"
    };
    Check::ok(HERE, name, format!("{runtime}: its programs are reached {way}"))
}

fn hands_out_its_table(machine: &Machine, runtime: &str) -> bool {
    const NEEDED: &[u8] = b"librocprofiler-register.so";
    let bytes = std::fs::read(machine.at(runtime)).unwrap_or_default();
    bytes.windows(NEEDED.len()).any(|window| window == NEEDED)
}
