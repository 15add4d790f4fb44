//! Generates the tables and the exports from `interface.txt`: each export jumps through its slot, as in AMD's runtime.

use std::fmt::Write as _;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=interface.txt");
    let interface = std::fs::read_to_string("interface.txt").expect("interface.txt is beside build.rs");
    let lines = interface.lines().filter(|line| !line.starts_with('#'));
    let entries: Vec<Vec<&str>> = lines.map(|line| line.split(' ').collect()).collect();
    let (mut code, mut data) = (String::from(".text\n"), String::from(".data\n.balign 16\n"));
    let (mut strings, mut slots) = (String::from(".section .rodata\n"), String::new());
    for table in ["core", "amd", "finalizer", "image", "tools", "sampling"] {
        let names: Vec<&str> =
            entries.iter().filter(|entry| entry[0] == table).map(|entry| entry[1]).collect();
        // Four words of version come first.
        let _ = write!(
            data,
            ".globl rocr_standin_{table}\n.hidden rocr_standin_{table}\nrocr_standin_{table}:\n.zero 16\n"
        );
        for (index, name) in names.iter().enumerate() {
            if table != "tools" {
                export(&mut code, name, table, index);
            }
            let _ = write!(
                code,
                ".Ldefault_{name}:\nlea rdi, [rip + .Lname_{name}]\njmp rocr_standin_unsupported\n"
            );
            let _ = writeln!(strings, ".Lname_{name}: .asciz \"{name}\"");
            let default = if table == "tools" { "0".to_owned() } else { format!(".Ldefault_{name}") };
            let _ = writeln!(data, ".quad {default}");
            let _ = writeln!(
                slots,
                "pub(crate) const {name}: Slot = Slot {{ table: Table::{table}, index: {index} }};"
            );
        }
        let _ = writeln!(slots, "pub(crate) const {}_SLOTS: usize = {};", table.to_uppercase(), names.len());
    }
    for entry in entries.iter().filter(|entry| entry[0] == "alias") {
        let position =
            entries.iter().filter(|other| other[0] == "core").position(|other| other[1] == entry[1]);
        export(&mut code, entry[2], "core", position.expect("an alias names a slot of the core table"));
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(out.join("functions.s"), code + &data + &strings + ".text\n")
        .expect("OUT_DIR is writable");
    std::fs::write(out.join("slots.rs"), slots).expect("OUT_DIR is writable");
}

fn export(code: &mut String, name: &str, table: &str, index: usize) {
    let _ = write!(
        code,
        ".globl {name}\n.type {name},@function\n{name}:\njmp qword ptr [rip + rocr_standin_{table} + {}]\n.size {name}, . - {name}\n",
        16 + 8 * index
    );
}
