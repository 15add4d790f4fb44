//! Prints the headers in `include/xsched` from the lists that define the exported functions, and checks that the files are
//! up to date.
//!
//! `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers` writes them. cbindgen is not used: the files have to keep the
//! layout, the macros and the anonymous enums of the original C++ XSched, one header for each platform, and cbindgen does
//! not expand the `api!` lists that the functions come from.

use std::fmt::Write as _;
use std::path::Path;

use super::types::{ENUMS, HINT_TYPES, HintType};
use super::{command, extra, hint, hwqueue, xqueue};
use crate::platforms::PLATFORMS;

/// A function as C declares it.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// Names and types of the arguments, the types as Rust writes them.
    pub(crate) arguments: &'static [(&'static str, &'static str)],
    pub(crate) about: &'static [&'static str],
}

/// An enum as C declares it.
pub(crate) struct Enum {
    pub(crate) name: &'static str,
    pub(crate) about: &'static [&'static str],
    pub(crate) values: &'static [(&'static str, i32, &'static [&'static str])],
}

/// The header of a platform.
pub(crate) struct PlatformHeader {
    /// Its path below `include/xsched`.
    pub(crate) path: &'static str,
    /// The first line of the file.
    pub(crate) about: &'static str,
    /// The vendor's queue type in `api.rs`, and the tag of the C struct that it points to, or `void`. The tag of another type `X_handle_t` is
    /// `_X_handle_t`.
    pub(crate) queue_type: (&'static str, &'static str),
    /// The functions, in the order in which they are declared.
    pub(crate) functions: &'static [Function],
}

impl PlatformHeader {
    /// For platforms without C functions, which have no header.
    pub(crate) const NONE: Self = Self { path: "", about: "", queue_type: ("", ""), functions: &[] };
}

/// One file.
struct Header {
    path: &'static str,
    about: &'static str,
    includes: &'static [&'static str],
    /// The declarations before the functions.
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

/// A name with its type, as C declares both.
fn declare(name: &str, kind: &str) -> String {
    let pointer_to = |what: &str| format!("{what} *{name}");
    match kind.strip_prefix("*mut ") {
        Some("c_void") => pointer_to("void"),
        Some(what) => pointer_to(what),
        None => format!("{kind} {name}"),
    }
}

fn function(function: &Function) -> String {
    let arguments: Vec<_> = function.arguments.iter().map(|(name, kind)| declare(name, kind)).collect();
    // The only function that does not return a code.
    let returns = if function.name == "XSchedLastError" { "const char *" } else { "XResult " };
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    let line = format!("{returns}{}({arguments});", function.name);
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
/** An XQueue. 0 is invalid. */
typedef uint64_t XQueueHandle;
/** A hardware queue: a vendor's queue for which a handle was created. 0 is invalid. */
typedef uint64_t HwQueueHandle;
/** A command. 0 is invalid. */
typedef uint64_t HwCommandHandle;
";
    let launch = "\
/** The function of a command. `hwq` is the hardware queue to launch on, `data` what the command was created with. */
typedef XResult (*LaunchCallback)(HwQueueHandle hwq, void *data);
";
    let mut parts = vec![handles.to_owned()];
    parts.extend(ENUMS.iter().map(enumeration));
    parts.push(launch.to_owned());
    parts.extend(HINT_TYPES.iter().map(hint_type));
    parts.join("\n")
}

fn hint_type(hint: &HintType) -> String {
    let mut text = format!("{}typedef {} {};\n", comment(&[hint.about], ""), hint.of, hint.name);
    for (name, value, about) in hint.macros {
        let about = if about.is_empty() { String::new() } else { format!("/** {about} */\n") };
        let _ = writeln!(text, "{about}#define {name} {value}");
    }
    text
}

fn platform(header: &'static PlatformHeader) -> Header {
    Header {
        path: header.path,
        about: header.about,
        includes: &["\"xsched/types.h\""],
        types: vendor_types(header),
        functions: vec![header.functions],
    }
}

/// The vendor's types, declared as in the vendor's own header, which may be included before or after this one.
fn vendor_types(header: &PlatformHeader) -> String {
    // C before C11 allows one declaration of a type only. Compilers do not insist on that in system headers.
    let mut text = "#ifdef __GNUC__\n#pragma GCC system_header\n#endif\n\
         /* As the vendor's own header declares it, which may be included before or after this one. */\n"
        .to_owned();
    let (name, tag) = header.queue_type;
    let target = if tag == "void" { "void".to_owned() } else { format!("struct {tag}") };
    let _ = writeln!(text, "typedef {target} *{name};");
    let others = header.functions.iter().flat_map(|function| function.arguments).map(|(_, kind)| *kind);
    for other in others.filter(|kind| kind.ends_with("_handle_t") && *kind != name) {
        let _ = writeln!(text, "typedef struct _{other} *{other};");
    }
    text
}

fn headers() -> Vec<Header> {
    let mut headers = vec![
        Header {
            path: "types.h",
            about: "XSched: types and values.",
            includes: &["<stddef.h>", "<stdint.h>"],
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
            about: "XSched: hints for the scheduler. A hint is in effect when its function returns.",
            includes: &["\"xsched/types.h\""],
            types: String::new(),
            functions: vec![hint::FUNCTIONS],
        },
        Header {
            path: "extra.h",
            about: "XSched: functions that the original C++ XSched lacks.",
            includes: &["\"xsched/types.h\""],
            types: String::new(),
            functions: vec![extra::FUNCTIONS],
        },
        Header {
            path: "xsched.h",
            about: "XSched: everything that is independent of a vendor.",
            includes: &[
                "\"xsched/types.h\"",
                "\"xsched/xqueue.h\"",
                "\"xsched/hint.h\"",
                "\"xsched/extra.h\"",
            ],
            types: String::new(),
            functions: vec![],
        },
    ];
    let with_functions =
        PLATFORMS.iter().map(|registered| registered.header).filter(|header| !header.functions.is_empty());
    headers.extend(with_functions.map(platform));
    headers
}

fn print(header: &Header) -> String {
    let guard = format!("XSCHED_{}", header.path.to_ascii_uppercase().replace(['/', '.'], "_"));
    let mut text = format!(
        "/*\n * {}\n *\n * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.\n */\n\
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

fn header(path: &str) -> Option<Header> {
    headers().into_iter().find(|header| header.path == path)
}

/// The functions that a header declares.
pub(super) fn all_functions(path: &str) -> Vec<&'static Function> {
    header(path).map_or_else(Vec::new, |header| header.functions.into_iter().flatten().collect())
}

/// The text of a header.
pub(super) fn header_text(path: &str) -> String {
    header(path).map_or_else(String::new, |header| print(&header))
}

#[test]
fn headers_are_up_to_date() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/xsched");
    for header in headers() {
        let (path, text) = (directory.join(header.path), print(&header));
        if std::env::var_os("XSCHED_WRITE_HEADERS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            found, text,
            "{} differs from the library's sources: run the command at the head of api/header.rs",
            header.path
        );
    }
}
