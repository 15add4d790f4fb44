//! Environment variables of the original C++ XSched that have no effect here, each with the reason. `docs/environment.md` lists
//! them too; a test compares.

/// Each name, and why the variable is ignored.
pub const IGNORED_VARIABLES: [(&str, &str); 17] = [
    ("XSCHED_SCHEDULER_SUSPEND_SYNC_HWQ", DRAINS),
    ("XSCHED_SCHEDULER_SUSPEND_WAIT_ALL", DRAINS),
    ("XSCHED_SCHEDULER_SUSPEND_WAIT_IDLE", DRAINS),
    ("XSCHED_CUDA_LV3_IMPL", "level 3 always uses time slices (TSG)"),
    ("XSCHED_CUDA_SINGLE_STREAM_PER_PROCESS", "the program's launches stay in the program's own streams"),
    ("XSCHED_LEVELZERO_SLICE_CNT", "command lists are not split"),
    ("XSCHED_ASCEND_LIB", OWN_COPY),
    ("XSCHED_COREX_LIB", OWN_COPY),
    ("XSCHED_COREX_RT_LIB", OWN_COPY),
    ("XSCHED_CUDA_LIB", OWN_COPY),
    ("XSCHED_CUPTI_LIB", OWN_COPY),
    ("XSCHED_CUDART_LIB", OWN_COPY),
    ("XSCHED_CUDLA_LIB", OWN_COPY),
    ("XSCHED_HIP_LIB", OWN_COPY),
    ("XSCHED_LEVELZERO_LIB", OWN_COPY),
    ("XSCHED_OPENCL_LIB", OWN_COPY),
    ("XSCHED_VPI_LIB", OWN_COPY),
];

const DRAINS: &str = "the order says how a held task stops: it yields, is evicted or drains";
const OWN_COPY: &str = "the copy of the vendor's library that the program itself uses is used";

/// The ignored variables that are set, with the reason.
pub fn ignored_variables(
    is_set: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    IGNORED_VARIABLES.into_iter().filter(move |(name, _)| is_set(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_that_are_set_are_listed() {
        assert_eq!(ignored_variables(|_| false).count(), 0);
        let is_set = |name: &str| matches!(name, "XSCHED_CUDA_LV3_IMPL" | "XSCHED_SCHEDULER");
        let found: Vec<_> = ignored_variables(is_set).collect();
        assert_eq!(found, [("XSCHED_CUDA_LV3_IMPL", "level 3 always uses time slices (TSG)")]);
    }

    #[test]
    fn documentation_lists_every_ignored_variable() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (name, _) in IGNORED_VARIABLES {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
