//! Generates the library's exports from `interface.txt`: each is a few instructions that jump through the dispatch table,
//! as in AMD's runtime. Also generates the table's default entries, for functions that are not implemented.

use std::fmt::Write as _;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=interface.txt");
    let interface = std::fs::read_to_string("interface.txt").expect("interface.txt is beside build.rs");
    let lines = interface.lines().filter(|line| !line.starts_with('#'));
    let entries: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();

    let mut code = String::from(".text\n");
    let mut names = String::new();
    let mut defaults = String::from(".section .data.rel.ro,\"aw\"\n.globl hip_standin_defaults\n");
    defaults.push_str(".hidden hip_standin_defaults\nhip_standin_defaults:\n");
    let mut exports =
        String::from(".globl hip_standin_exports\n.hidden hip_standin_exports\nhip_standin_exports:\n");
    for (index, entry) in entries.iter().enumerate() {
        let (version, name) = (entry[1], entry[2]);
        // Functions without a slot follow the others, in a part of the table that tools do not see.
        assert!(entry[0] == "-" || entry[0] == index.to_string(), "{name} is out of order");
        if version != "-" {
            let _ = write!(
                code,
                ".globl {name}\n.type {name},@function\n{name}:\n\
                 push rdi\npush rsi\npush rdx\npush rcx\npush r8\npush r9\nsub rsp, 8\n\
                 call hip_standin_table\n\
                 add rsp, 8\npop r9\npop r8\npop rcx\npop rdx\npop rsi\npop rdi\n\
                 jmp qword ptr [rax + {}]\n.size {name}, . - {name}\n",
                8 + 8 * index
            );
        }
        let _ = write!(code, ".Ldefault{index}:\nmov edi, {index}\njmp hip_standin_unsupported\n");
        let _ = writeln!(defaults, ".quad .Ldefault{index}");
        let _ = writeln!(exports, ".quad {}", if version == "-" { "0" } else { name });
        let _ = writeln!(names, "{name:?},");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(out.join("functions.s"), code + &defaults + &exports + ".text\n")
        .expect("OUT_DIR is writable");
    let table = format!(
        "/// All functions, those with a slot first and in its order.\n\
         pub(crate) static NAMES: [&str; {}] = [\n{names}];\n",
        entries.len()
    );
    std::fs::write(out.join("names.rs"), table).expect("OUT_DIR is writable");
}
