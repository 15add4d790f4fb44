//! Makes of `interface.txt` what the library exports: for each name a few instructions that go on through the table of
//! functions, as in AMD's; and what stands in the table for functions that nobody needed yet.

use std::fmt::Write as _;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=interface.txt");
    let interface = std::fs::read_to_string("interface.txt").expect("it lies beside this file");
    let lines = interface.lines().filter(|line| !line.starts_with('#'));
    let entries: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();

    let mut code = String::from(".text\n");
    let mut names = String::new();
    let mut defaults = String::from(".section .data.rel.ro,\"aw\"\n.globl hip_standin_defaults\n");
    defaults.push_str(".hidden hip_standin_defaults\nhip_standin_defaults:\n");
    let mut exports =
        String::from(".globl hip_standin_exports\n.hidden hip_standin_exports\nhip_standin_exports:\n");
    for (place, entry) in entries.iter().enumerate() {
        let (version, name) = (entry[1], entry[2]);
        // Functions without a slot lie behind the others, in a part of the table that nobody is shown.
        assert!(entry[0] == "-" || entry[0] == place.to_string(), "{name} is out of order");
        if version != "-" {
            let _ = write!(
                code,
                ".globl {name}\n.type {name},@function\n{name}:\n\
                 push rdi\npush rsi\npush rdx\npush rcx\npush r8\npush r9\nsub rsp, 8\n\
                 call hip_standin_table\n\
                 add rsp, 8\npop r9\npop r8\npop rcx\npop rdx\npop rsi\npop rdi\n\
                 jmp qword ptr [rax + {}]\n.size {name}, . - {name}\n",
                8 + 8 * place
            );
        }
        let _ = write!(code, ".Ldefault{place}:\nmov edi, {place}\njmp hip_standin_unsupported\n");
        let _ = writeln!(defaults, ".quad .Ldefault{place}");
        let _ = writeln!(exports, ".quad {}", if version == "-" { "0" } else { name });
        let _ = writeln!(names, "{name:?},");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where"));
    std::fs::write(out.join("functions.s"), code + &defaults + &exports + ".text\n")
        .expect("the place is ours");
    let table = format!(
        "/// All functions, those with a slot first and in its order.\n\
         pub(crate) static NAMES: [&str; {}] = [\n{names}];\n",
        entries.len()
    );
    std::fs::write(out.join("names.rs"), table).expect("the place is ours");
}
