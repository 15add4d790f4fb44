//! AMD's runtimes on this machine, and how their programs are intercepted.

use serde_json::json;

use crate::doctor::{Check, Group, Machine};

const HERE: Group = Group::Devices;

/// The HIP runtime, and `ROCr`, the runtime below it.
const HIP: &str = "libamdhip64.so.";
const ROCR: &str = "libhsa-runtime64.so.";

/// One line for each runtime in the default directories. Python packages contain further copies, which are not searched: AMD
/// builds all of them alike.
pub(super) fn probe(machine: &Machine) -> Vec<Check> {
    let hip = runtimes(machine, HIP);
    let rocr = runtimes(machine, ROCR);
    let hip = hip.iter().map(|runtime| examine(machine, runtime));
    hip.chain(rocr.iter().map(|runtime| examine_rocr(machine, runtime))).collect()
}

/// The runtime files, without duplicates.
fn runtimes(machine: &Machine, file: &str) -> Vec<String> {
    let rocm_directories = machine.names_in("/opt").into_iter().filter(|name| name.starts_with("rocm"));
    let mut directories: Vec<_> = rocm_directories.map(|name| format!("/opt/{name}/lib")).collect();
    directories.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"].map(str::to_owned));
    let mut found: Vec<(std::path::PathBuf, String)> = Vec::new();
    for directory in directories {
        for name in machine.names_in(&directory).iter().filter(|name| name.starts_with(file)) {
            let path = format!("{directory}/{name}");
            let file = machine.at(&path).canonicalize().unwrap_or_default();
            // Sorted: the first name of a file is the shortest, the others are links to it.
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
            "{runtime}: ROCPROFILER_REGISTER_LIBRARY names a library that receives the API table instead of XSched"
        );
        let do_next = "XSched still intercepts functions by name; unset ROCPROFILER_REGISTER_LIBRARY to intercept the API \
                       table";
        let facts = json!({ "file": runtime, "interception": "names" });
        return Check::warning(HERE, name_of(runtime), what, do_next).with_facts(facts);
    }
    let has_table = provides_api_table(machine, runtime);
    let method = if has_table {
        "through the API table that it passes to tools (rocprofiler-register)"
    } else {
        "by the names of its functions, because it was built without rocprofiler-register"
    };
    let facts = json!({ "file": runtime, "interception": if has_table { "table" } else { "names" } });
    Check::ok(HERE, name_of(runtime), format!("{runtime}: its programs are intercepted {method}"))
        .with_facts(facts)
}

/// `ROCr`, for programs that use it without HIP.
fn examine_rocr(machine: &Machine, runtime: &str) -> Check {
    let tools = machine.variable("HSA_TOOLS_LIB");
    let other_tools =
        tools.map(|tools| format!("; `{tools}` in HSA_TOOLS_LIB is loaded before XSched and keeps working"));
    let what = format!(
        "{runtime}: programs that use it without HIP are intercepted through ROCr's tools interface{}",
        other_tools.unwrap_or_default()
    );
    Check::ok(HERE, name_of(runtime), what)
}

fn provides_api_table(machine: &Machine, runtime: &str) -> bool {
    const NEEDED: &[u8] = b"librocprofiler-register.so";
    let bytes = std::fs::read(machine.at(runtime)).unwrap_or_default();
    bytes.windows(NEEDED.len()).any(|window| window == NEEDED)
}
