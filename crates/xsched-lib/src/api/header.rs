//! Prints the headers in `include/xsched` from what the library is made of, and checks that they are up to date.
//!
//! `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers` writes them.

use std::fmt::Write as _;
use std::path::Path;

use super::types::{ENUMS, MACROS};
use super::{command, extra, hint, hwqueue, platforms, xqueue};

/// A function as C sees it.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Names and types, the latter as Rust has them.
    pub(crate) arguments: &'static [(&'static str, &'static str)],
    pub(crate) about: &'static [&'static str],
}

/// An enum as C sees it.
pub(crate) struct Enum {
    pub(crate) name: &'static str,
    pub(crate) about: &'static [&'static str],
    pub(crate) values: &'static [(&'static str, i32, &'static [&'static str])],
}

/// One file.
struct Header {
    path: &'static str,
    about: &'static str,
    includes: &'static [&'static str],
    /// What comes before the functions.
    types: String,
    functions: Vec<&'static [Function]>,
}

/// A comment in C, of one line or more.
fn comment(lines: &[&str], indent: &str) -> String {
    match lines {
        [] => String::new(),
        [line] => format!("{indent}/** {} */\n", line.trim()),
        lines => {
            let mut text = format!("{indent}/**\n");
            for line in lines {
                let _ = writeln!(text, "{indent} * {}", line.trim());
            }
            let text = text.replace(" * \n", " *\n");
            format!("{text}{indent} */\n")
        }
    }
}

/// A name with its type, as C writes both.
fn declare(name: &str, kind: &str) -> String {
    let pointer_to = |what: &str| format!("{what} *{name}");
    match kind {
        "Launch" => format!("XResult (*{name})(HwQueueHandle hwq, void *data)"),
        "CUstream" => pointer_to("struct CUstream_st"),
        "hipStream_t" => pointer_to("struct ihipStream_t"),
        "cl_command_queue" => pointer_to("struct _cl_command_queue"),
        "xsim_queue_t" => pointer_to("struct xsim_queue"),
        kind => match kind.strip_prefix("*mut ") {
            Some("c_void") => pointer_to("void"),
            Some(what) => pointer_to(what),
            None => format!("{kind} {name}"),
        },
    }
}

fn function(function: &Function) -> String {
    let arguments: Vec<_> = function.arguments.iter().map(|(name, kind)| declare(name, kind)).collect();
    // The one function of ours that answers with words.
    let answers = if function.name == "XSchedLastError" { "const char *" } else { "XResult " };
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    let line = format!("{answers}{}({arguments});", function.name);
    format!("{}{line}\n", comment(function.about, ""))
}

fn enumeration(enumeration: &Enum) -> String {
    let mut text = comment(enumeration.about, "");
    text.push_str("typedef enum {\n");
    for (n, (name, number, about)) in enumeration.values.iter().enumerate() {
        let comma = if n + 1 < enumeration.values.len() { "," } else { "" };
        let _ = writeln!(text, "{}    {name} = {number}{comma}", comment(about, "    "));
    }
    let _ = writeln!(text, "}} {};", enumeration.name);
    text
}

fn types() -> String {
    let handles = "\
/** A device: its kind in the upper 32 bits, its PCI address in the lower. */
typedef uint64_t XDevice;
/** The PCI address of a device. */
typedef uint32_t XDeviceId;
/** An XQueue. 0 is none. */
typedef uint64_t XQueueHandle;
/** A hardware queue: a vendor's stream that was made known. 0 is none. */
typedef uint64_t HwQueueHandle;
/** A command. 0 is none. */
typedef uint64_t HwCommandHandle;
";
    let enums: Vec<_> = ENUMS.iter().map(enumeration).collect();
    format!("{handles}\n{}", enums.join("\n"))
}

fn macros() -> String {
    let mut text = String::new();
    for (name, value, about) in MACROS {
        let about = if about.is_empty() { String::new() } else { format!("/** {about} */\n") };
        let _ = writeln!(text, "{about}#define {name} {value}");
    }
    text
}

fn vendors(what: &str) -> String {
    format!("/* As the vendor's own header declares it. */\nstruct {what};\n")
}

fn headers() -> Vec<Header> {
    let platform = |path, about, what, functions| Header {
        path,
        about,
        includes: &["\"xsched/types.h\""],
        types: vendors(what),
        functions: vec![functions],
    };
    vec![
        Header {
            path: "types.h",
            about: "XSched: types and values.",
            includes: &["<stdint.h>"],
            types: types(),
            functions: vec![],
        },
        Header {
            path: "xqueue.h",
            about: "XSched: queues that can be suspended and resumed, and commands to submit to them.",
            includes: &["\"xsched/types.h\""],
            types: String::new(),
            functions: vec![xqueue::FUNCTIONS, hwqueue::FUNCTIONS, command::FUNCTIONS],
        },
        Header {
            path: "hint.h",
            about: "XSched: what a program tells its scheduler. Every hint counts when its function returns.",
            includes: &["<stddef.h>", "\"xsched/types.h\""],
            types: macros(),
            functions: vec![hint::FUNCTIONS],
        },
        Header {
            path: "extra.h",
            about: "XSched: what the C++ XSched does not have. Programs that use it need this one.",
            includes: &["\"xsched/types.h\""],
            types: String::new(),
            functions: vec![extra::FUNCTIONS],
        },
        Header {
            path: "xsched.h",
            about: "XSched: all that needs no vendor's header.",
            includes: &[
                "\"xsched/types.h\"",
                "\"xsched/xqueue.h\"",
                "\"xsched/hint.h\"",
                "\"xsched/extra.h\"",
            ],
            types: String::new(),
            functions: vec![],
        },
        platform("cuda/hal.h", "XSched for CUDA.", "CUstream_st", platforms::cuda::FUNCTIONS),
        platform("hip/hal.h", "XSched for HIP.", "ihipStream_t", platforms::hip::FUNCTIONS),
        platform("opencl/hal.h", "XSched for OpenCL.", "_cl_command_queue", platforms::opencl::FUNCTIONS),
        platform("xsim/hal.h", "XSched for the simulated device.", "xsim_queue", platforms::xsim::FUNCTIONS),
    ]
}

fn print(header: &Header) -> String {
    let guard = format!("XSCHED_{}", header.path.to_ascii_uppercase().replace(['/', '.'], "_"));
    let mut text = format!(
        "/*\n * {}\n *\n * Made from the library's own sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.\n */\n\
         #ifndef {guard}\n#define {guard}\n\n",
        header.about
    );
    for include in header.includes {
        let _ = writeln!(text, "#include {include}");
    }
    let functions: Vec<_> = header.functions.iter().flat_map(|list| list.iter()).map(function).collect();
    let mut parts = vec![header.types.clone(), functions.join("\n")];
    parts.retain(|part| !part.is_empty());
    if !parts.is_empty() {
        let body = parts.join("\n");
        let _ = write!(
            text,
            "\n#ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n{body}\n#ifdef __cplusplus\n}}\n#endif\n"
        );
    }
    let _ = write!(text, "\n#endif\n");
    text
}

#[test]
fn headers_are_up_to_date() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/xsched");
    for header in headers() {
        let (path, text) = (place.join(header.path), print(&header));
        if std::env::var_os("XSCHED_WRITE_HEADERS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(found, text, "{} is not what the library has: see the head of api/header.rs", header.path);
    }
}
