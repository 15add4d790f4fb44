//! OpenCL: the installed vendor libraries.

use crate::doctor::{Check, Group, Machine};

#[cfg(test)]
mod tests;

const HERE: Group = Group::Devices;
const NAME: &str = "OpenCL";
/// The directory that the ICD loader searches, and the variable that overrides it.
const VENDORS: &str = "/etc/OpenCL/vendors";
const VENDORS_VARIABLE: &str = "OCL_ICD_VENDORS";
/// The original C++ XSched opens the library that this variable names.
const LIBRARY_VARIABLE: &str = "XSCHED_OPENCL_LIB";

/// One line for all vendors, and one for each problem; none if no vendor is installed and no variable is set.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<_> = machine
        .variable(LIBRARY_VARIABLE)
        .map(|path| report_ignored_variable(machine, path))
        .into_iter()
        .collect();
    let named = machine.variable(VENDORS_VARIABLE);
    let directory = named.unwrap_or(VENDORS);
    let vendors = vendors(machine, directory);
    if vendors.is_empty() {
        checks.extend(named.map(|named| {
            let what =
                format!("{VENDORS_VARIABLE} is {named}, which has no .icd file: programs find no device");
            Check::warning(
                HERE,
                NAME,
                what,
                format!("unset {VENDORS_VARIABLE}, or set it to a directory with .icd files"),
            )
        }));
        return checks;
    }
    checks.extend(vendors.iter().filter_map(|vendor| vendor.missing(machine, directory)));
    let vendors: Vec<_> =
        vendors.iter().map(|vendor| format!("{} ({})", vendor.name, vendor.library)).collect();
    let vendors = vendors.join(", ");
    let what = format!("{vendors}: programs can be scheduled at level 1, on PoCL also at level 2");
    checks.push(Check::ok(HERE, NAME, what));
    checks
}

/// The variable has no effect: XSched uses the library that the program itself uses.
fn report_ignored_variable(machine: &Machine, path: &str) -> Check {
    let state = if machine.has(path) { "is not needed" } else { "does not exist and is not needed" };
    let what = format!(
        "{LIBRARY_VARIABLE} names {path}, which {state}: XSched uses the library that the program uses"
    );
    Check::warning(HERE, NAME, what, format!("unset {LIBRARY_VARIABLE}; programs are scheduled without it"))
}

struct Vendor {
    name: String,
    library: String,
}

fn vendors(machine: &Machine, directory: &str) -> Vec<Vendor> {
    let files = machine.names_in(directory).into_iter();
    let vendor = |file: String| {
        let name = file.strip_suffix(".icd")?.to_owned();
        let text = machine.text(&format!("{directory}/{file}")).unwrap_or_default();
        Some(Vendor { name, library: text.trim().to_owned() })
    };
    files.filter_map(vendor).collect()
}

impl Vendor {
    /// A problem if its library is given by path and does not exist.
    fn missing(&self, machine: &Machine, directory: &str) -> Option<Check> {
        let Self { name, library } = self;
        let missing = library.starts_with('/') && !machine.has(library);
        missing.then(|| {
            let what = format!("{name} names {library}, which does not exist: its devices are not found");
            let do_next = format!("install {name} again, or remove {directory}/{name}.icd");
            Check::problem(HERE, format!("{NAME} {name}"), what, do_next)
        })
    }
}
