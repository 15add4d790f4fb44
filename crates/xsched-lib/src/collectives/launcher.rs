//! The job that a launcher describes in the environment.
//!
//! ```text
//!   PyTorch's rendezvous   MASTER_ADDR, MASTER_PORT, WORLD_SIZE > 1, TORCHELASTIC_RUN_ID if set
//!   Slurm                  SLURM_JOB_ID, SLURM_STEP_ID, SLURM_NTASKS or SLURM_STEP_NUM_TASKS > 1
//!   Open MPI               PMIX_NAMESPACE or OMPI_MCA_ess_base_jobid, OMPI_COMM_WORLD_SIZE > 1
//! ```
//!
//! A rendezvous at a loopback address is one of a network namespace: containers have the same addresses there, and each has a
//! port 29500 of its own. At any other address, the ranks of one job may be in different namespaces.
//!
//! The first is used by programs that communicate through collectives. The others are set for all tasks of a step, which may
//! be independent: they count only if a library is loaded that contains collectives and exports none of their names.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;

use xsched_ipc::environment::validate_name;
use xsched_ipc::protocol::JobKey;

use super::communicators::KeyHash;

/// What the job depends on besides the environment. Each function is called only if it matters.
pub(super) struct Process {
    /// Whether a library is loaded that contains collectives.
    pub(super) contains_collectives: fn() -> bool,
    /// The number of the network namespace.
    pub(super) network_namespace: fn() -> Option<u64>,
}

/// This process.
pub(super) const OWN: Process = Process { contains_collectives, network_namespace };

/// The job of a process, if a launcher describes one.
pub(super) fn job_key(get: impl Fn(&str) -> Option<String>, process: &Process) -> Option<JobKey> {
    let get = |name: &str| get(name).filter(|value| !value.is_empty());
    let is_several = |name: &str| get(name).and_then(|text| text.parse::<u64>().ok()).is_some_and(|n| n > 1);
    if is_several("WORLD_SIZE")
        && let (Some(address), Some(port)) = (get("MASTER_ADDR"), get("MASTER_PORT"))
    {
        let run = get("TORCHELASTIC_RUN_ID").filter(|run| run != "none");
        let mut parts: Vec<_> = run.into_iter().collect();
        if is_loopback(&address) {
            parts.extend((process.network_namespace)().map(|number| format!("net:[{number}]")));
        }
        return Some(key(&format!("torch {address}:{port}"), &parts));
    }
    let step = if is_several("SLURM_STEP_NUM_TASKS") || is_several("SLURM_NTASKS") {
        get("SLURM_JOB_ID").zip(get("SLURM_STEP_ID")).map(|(job, step)| format!("slurm {job}.{step}"))
    } else {
        None
    };
    let mpi = || {
        let job = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
        let job = job.filter(|_| is_several("OMPI_COMM_WORLD_SIZE"));
        job.map(|job| format!("mpi {job}"))
    };
    step.or_else(mpi).filter(|_| (process.contains_collectives)()).map(|text| key(&text, &[]))
}

/// A key with all of this text. If that is no valid name, the hash replaces the parts, and if necessary the description.
fn key(description: &str, parts: &[String]) -> JobKey {
    let text = parts.iter().fold(description.to_owned(), |text, part| format!("{text} {part}"));
    let hash = KeyHash::of(text.as_bytes());
    let launcher = description.split(' ').next().unwrap_or_default();
    let name = validate_name(&text).or_else(|_| validate_name(&format!("{description} {hash}")));
    JobKey::Launcher(name.unwrap_or_else(|_| format!("{launcher} {hash}")))
}

/// Whether an address denotes the network namespace of the process that uses it.
fn is_loopback(address: &str) -> bool {
    const NAMES: [&str; 3] = ["localhost", "localhost.localdomain", "ip6-localhost"];
    let number = address.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    NAMES.iter().any(|name| address.eq_ignore_ascii_case(name))
        || number.is_ok_and(|number| number.is_loopback() || number.is_unspecified())
}

fn network_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/net").ok().map(|file| file.ino())
}

/// Whether a library is loaded that contains collectives, perhaps without exporting their names.
fn contains_collectives() -> bool {
    const LIBRARIES: [&str; 2] = ["/libtorch_cuda", "/libtorch_hip"];
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| LIBRARIES.iter().any(|library| line.contains(library)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)], contains: bool) -> Option<String> {
        let contains_collectives = if contains { || true } else { || false };
        job_of(variables, &Process { contains_collectives, network_namespace: || Some(7) })
    }

    fn job_of(variables: &[(&str, &str)], process: &Process) -> Option<String> {
        let get =
            |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        job_key(get, process).map(|key| {
            key.validate().unwrap();
            key.label()
        })
    }

    #[test]
    fn rendezvous_of_several_ranks_is_a_job() {
        let torch = [("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "4")];
        assert_eq!(job(&torch, false).unwrap(), "torch 10.0.0.1:29500");
        assert_eq!(
            job(&[&torch[..], &[("TORCHELASTIC_RUN_ID", "7")]].concat(), false).unwrap(),
            "torch 10.0.0.1:29500 7"
        );
        assert_eq!(job(&[&torch[..2], &[("WORLD_SIZE", "1")]].concat(), true), None);
        assert_eq!(job(&torch[1..], true), None);
    }

    #[test]
    fn containers_with_the_same_loopback_address_are_different_jobs() {
        let in_namespace = |address: &str, network_namespace| {
            let torch = [("MASTER_ADDR", address), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")];
            job_of(&torch, &Process { contains_collectives: || false, network_namespace }).unwrap()
        };
        for address in ["localhost", "Localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "0.0.0.0"] {
            let label = in_namespace(address, || Some(7));
            assert_eq!(label, format!("torch {address}:29500 net:[7]"));
            assert_ne!(label, in_namespace(address, || Some(8)));
        }
        // Ranks in several containers meet at these.
        for address in ["10.0.0.1", "master-0", "localhost.example.org", "fe80::1"] {
            assert_eq!(in_namespace(address, || Some(7)), format!("torch {address}:29500"));
        }
        assert_eq!(in_namespace("localhost", || None), "torch localhost:29500");
        let own = network_namespace();
        assert!(own.is_some());
        assert_eq!(std::thread::spawn(network_namespace).join().unwrap(), own);
    }

    #[test]
    fn long_parts_are_hashed_and_the_address_stays_readable() {
        let run = "550e8400-e29b-41d4-a716-446655440000";
        let torch = [("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")];
        let with_run = |run| job(&[&torch[..], &[("TORCHELASTIC_RUN_ID", run)]].concat(), false).unwrap();
        let label = with_run(run);
        assert!(label.starts_with("torch localhost:29500 ") && label.len() == 54, "{label}");
        assert_ne!(label, with_run("550e8400-e29b-41d4-a716-446655440001"));
    }

    #[test]
    fn steps_are_jobs_only_with_a_library_that_contains_collectives() {
        let slurm = [("SLURM_JOB_ID", "12"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2")];
        assert_eq!(job(&slurm, true).unwrap(), "slurm 12.0");
        assert_eq!(job(&slurm, false), None);
        let mpi = [("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_NAMESPACE", "prterun-host-1@1")];
        assert_eq!(job(&mpi, true).unwrap(), "mpi prterun-host-1@1");
    }

    #[test]
    fn long_description_is_hashed() {
        let long = "x".repeat(100);
        let label = job(&[("MASTER_ADDR", &long), ("MASTER_PORT", "1"), ("WORLD_SIZE", "2")], false).unwrap();
        assert!(label.starts_with("torch ") && label.len() == 38, "{label}");
    }
}
