//! OpenCL: which vendors' libraries are installed.

use crate::doctor::{Check, Group, Machine};

#[cfg(test)]
mod tests;

const HERE: Group = Group::Devices;
const NAME: &str = "OpenCL";
/// Where OpenCL's loader looks for vendors, and the variable that says otherwise.
const VENDORS: &str = "/etc/OpenCL/vendors";
const ELSEWHERE: &str = "OCL_ICD_VENDORS";
/// The reference opens the library that this names.
const LIBRARY: &str = "XSCHED_OPENCL_LIB";

/// One line for all the vendors there are, and one for each thing that is amiss; nothing if nobody speaks of OpenCL.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let mut checks: Vec<_> =
        machine.variable(LIBRARY).map(|path| ignored(machine, path)).into_iter().collect();
    let named = machine.variable(ELSEWHERE);
    let directory = named.unwrap_or(VENDORS);
    let vendors = vendors(machine, directory);
    if vendors.is_empty() {
        checks.extend(named.map(|named| {
            let what = format!("{ELSEWHERE} is {named}, where no vendor is: programs find no device");
            Check::warning(
                HERE,
                NAME,
                what,
                format!("unset {ELSEWHERE}, or let it name a directory of .icd files"),
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

/// XSched uses the library that the program itself uses.
fn ignored(machine: &Machine, path: &str) -> Check {
    let there = if machine.has(path) { "is not needed" } else { "is not there, and not needed" };
    let what =
        format!("{LIBRARY} names {path}, which {there}: XSched uses the library that the program uses");
    Check::warning(HERE, NAME, what, format!("unset {LIBRARY}; programs are scheduled without it"))
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
    /// What is wrong with it, if its library is named by its path and is not there.
    fn missing(&self, machine: &Machine, directory: &str) -> Option<Check> {
        let Self { name, library } = self;
        let gone = library.starts_with('/') && !machine.has(library);
        gone.then(|| {
            let what = format!("{name} names {library}, which is not there: its devices are not found");
            let do_next = format!("install {name} again, or remove {directory}/{name}.icd");
            Check::problem(HERE, format!("{NAME} {name}"), what, do_next)
        })
    }
}
