//! AMD's runtimes on this machine: in which way their programs are reached.

use crate::doctor::{Check, Group, Machine};

const HERE: Group = Group::Devices;

/// AMD's HIP, and the runtime below it.
const HIP: &str = "libamdhip64.so.";
const BELOW: &str = "libhsa-runtime64.so.";

/// One line for each runtime that is installed where runtimes usually are. Those that Python packages bring along lie with
/// them; AMD's own builds are all alike.
pub(super) fn probe(machine: &Machine) -> Vec<Check> {
    let hip = runtimes(machine, HIP);
    let below = runtimes(machine, BELOW);
    let hip = hip.iter().map(|runtime| examine(machine, runtime));
    hip.chain(below.iter().map(|runtime| examine_below(machine, runtime))).collect()
}

/// Files that are runtimes, each once.
fn runtimes(machine: &Machine, file: &str) -> Vec<String> {
    let of_amd = machine.names_in("/opt").into_iter().filter(|name| name.starts_with("rocm"));
    let mut places: Vec<_> = of_amd.map(|name| format!("/opt/{name}/lib")).collect();
    places.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"].map(str::to_owned));
    let mut found: Vec<(std::path::PathBuf, String)> = Vec::new();
    for place in places {
        for name in machine.names_in(&place).iter().filter(|name| name.starts_with(file)) {
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

fn name_of(runtime: &str) -> String {
    format!("amd {}", runtime.rsplit('/').next().unwrap_or(runtime))
}

fn examine(machine: &Machine, runtime: &str) -> Check {
    if machine.variable("ROCPROFILER_REGISTER_LIBRARY").is_some() {
        let what = format!(
            "{runtime}: ROCPROFILER_REGISTER_LIBRARY names a library that takes its table in our place"
        );
        let do_next = "nothing breaks: what is found by name is scheduled; unset ROCPROFILER_REGISTER_LIBRARY for the \
                       better way";
        return Check::warning(HERE, name_of(runtime), what, do_next);
    }
    let way = if hands_out_its_table(machine, runtime) {
        "by its own table, which it hands to tools (rocprofiler-register): the best way there is"
    } else {
        "by the names of its functions, for it was built without rocprofiler-register"
    };
    Check::ok(HERE, name_of(runtime), format!("{runtime}: its programs are reached {way}"))
}

/// The runtime below HIP: of interest for programs that have no HIP.
fn examine_below(machine: &Machine, runtime: &str) -> Check {
    let tools = machine.variable("HSA_TOOLS_LIB");
    let beside = tools.map(|tools| format!("; `{tools}` of HSA_TOOLS_LIB comes before us and keeps working"));
    let what = format!(
        "{runtime}: programs that use it without HIP are reached as by a tool of its own, at the doorbells of their \
         queues, for they have no HIP whose table or names could be found{}",
        beside.unwrap_or_default()
    );
    Check::ok(HERE, name_of(runtime), what)
}

fn hands_out_its_table(machine: &Machine, runtime: &str) -> bool {
    const NEEDED: &[u8] = b"librocprofiler-register.so";
    let bytes = std::fs::read(machine.at(runtime)).unwrap_or_default();
    bytes.windows(NEEDED.len()).any(|window| window == NEEDED)
}
