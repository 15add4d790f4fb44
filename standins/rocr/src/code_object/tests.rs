//! Tests on an object built here, and on one of AMD's compiler where it is installed.

#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../../../../crates/xsched/tests/skipped/mod.rs"]
mod skipped;

use proptest::prelude::*;

use super::*;

/// `MessagePack` as AMD's compiler writes it.
fn text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    let header = if length < 32 { vec![0xa0 | length] } else { vec![0xd9, length] };
    [header, text.as_bytes().to_vec()].concat()
}

fn number(number: u16) -> Vec<u8> {
    [vec![0xcd], number.to_be_bytes().to_vec()].concat()
}

fn array(values: &[Vec<u8>]) -> Vec<u8> {
    [vec![0x90 | u8::try_from(values.len()).unwrap()], values.concat()].concat()
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let content = entries.iter().flat_map(|(key, value)| [text(key), value.clone()].concat());
    [0x80 | u8::try_from(entries.len()).unwrap()].into_iter().chain(content).collect()
}

fn argument(offset: u16, size: u16, kind: &str) -> Vec<u8> {
    map(&[(".offset", number(offset)), (".size", number(size)), (".value_kind", text(kind))])
}

fn metadata() -> Vec<u8> {
    let kernel = map(&[
        (".name", text("scale")),
        (".symbol", text("scale.kd")),
        (".kernarg_segment_size", number(280)),
        (".kernarg_segment_align", number(8)),
        (".group_segment_fixed_size", number(1024)),
        (".private_segment_fixed_size", number(16)),
        (".uses_dynamic_stack", vec![0xc3]),
        (".wavefront_size", number(64)),
        (
            ".args",
            array(&[
                argument(0, 8, "global_buffer"),
                argument(8, 4, "by_value"),
                argument(16, 4, "hidden_block_count_x"),
            ]),
        ),
    ]);
    map(&[
        ("amdhsa.kernels", array(&[kernel])),
        ("amdhsa.target", text("amdgcn-amd-amdhsa--gfx90a")),
        ("amdhsa.version", array(&[number(1), number(2)])),
    ])
}

fn padded(mut bytes: Vec<u8>, alignment: usize) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
    bytes
}

fn metadata_note() -> Vec<u8> {
    let content = metadata();
    let header =
        [7_u32, u32::try_from(content.len()).unwrap(), NT_AMDGPU_METADATA].map(u32::to_le_bytes).concat();
    padded([header, b"AMDGPU\0\0".to_vec(), content].concat(), 4)
}

/// A code object: a segment with everything, one kernel, the variables `table` and `pointer = &table[8]`, and a reference to
/// the undefined `external`.
fn object() -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let note = padded(metadata_note(), 8);
    let names = "\0scale.kd\0table\0pointer\0external\0".as_bytes().to_vec();
    // The headers, the note, then 5 symbols, 2 relocations, the names, the data.
    let note_at = 64 + 2 * 56;
    let symbols_at = note_at + note.len();
    let relocations_at = symbols_at + 5 * 24;
    let names_at = relocations_at + 2 * 24;
    let data_at = (names_at + names.len()).next_multiple_of(64);
    // The descriptor, the table, the pointer and a reference.
    let data =
        [vec![0x11; 64], vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], vec![0; 16]].concat();
    let memory_end = data_at + data.len() + 32;
    let sections_at = (data_at + data.len()).next_multiple_of(8);

    let at = |at: usize| u64::try_from(at).unwrap();
    let symbol = |name: u32, defined: u16, address: usize, size: u64| {
        [&name.to_le_bytes()[..], &[0x11, 3], &defined.to_le_bytes(), &words(&[at(address), size])].concat()
    };
    let relocation = |address: usize, kind: u32, symbol: u32, addend: usize| {
        [words(&[at(address)]), [kind, symbol].map(u32::to_le_bytes).concat(), words(&[at(addend)])].concat()
    };
    let segment = |kind: u32, start: usize, size: usize, memory: usize| {
        let range = words(&[at(start), at(start), at(start), at(size), at(memory), 4096]);
        [&[kind, 6].map(u32::to_le_bytes).concat()[..], &range].concat()
    };
    let section = |kind: u32, start: usize, size: usize, link: u32| {
        let place = words(&[SHF_ALLOC, at(start), at(start), at(size)]);
        [
            &[0, kind].map(u32::to_le_bytes).concat()[..],
            &place,
            &[link, 0].map(u32::to_le_bytes).concat(),
            &[0; 16],
        ]
        .concat()
    };
    let mut header = b"\x7fELF\x02\x01\x01\x40\x04".to_vec();
    header.resize(16, 0);
    header.extend([3_u16, MACHINE_AMDGPU].map(u16::to_le_bytes).concat());
    header.extend(1_u32.to_le_bytes());
    header.extend(words(&[0, 64, at(sections_at)]));
    header.extend(0x53f_u32.to_le_bytes());
    header.extend([64_u16, 56, 2, 64, 4, 0].map(u16::to_le_bytes).concat());
    let symbols = [
        vec![0; 24],
        symbol(1, 1, data_at, 64),
        symbol(10, 1, data_at + 64, 16),
        symbol(16, 1, data_at + 80, 8),
        symbol(24, 0, 0, 0),
    ];
    let relocations = [
        relocation(data_at + 80, relocation::RELATIVE64, 0, data_at + 64 + 8),
        relocation(data_at + 88, relocation::ABS64, 4, 1),
    ];
    let mut file = [
        header,
        segment(PT_LOAD, 0, data_at + data.len(), memory_end),
        segment(PT_NOTE, note_at, note.len(), note.len()),
        note,
        symbols.concat(),
        relocations.concat(),
        names.clone(),
    ]
    .concat();
    file = padded(file, 64);
    file.extend(data);
    file = padded(file, 8);
    file.extend(
        [
            vec![0; 64],
            section(SHT_DYNSYM, symbols_at, 5 * 24, 2),
            section(3, names_at, names.len(), 0),
            section(SHT_RELA, relocations_at, 2 * 24, 1),
        ]
        .concat(),
    );
    file
}

const EXTERNAL: u64 = 0x7700;

fn load(bytes: &[u8], base: u64) -> Result<Vec<u8>, CodeObjectError> {
    let object = CodeObject::parse(bytes)?;
    let mut image = vec![0xcc; object.image_size()];
    object.write_image(&mut image, base, &|name| (name == "external").then_some(EXTERNAL))?;
    Ok(image)
}

#[test]
fn kernels_of_every_metadata_note_are_kept() {
    let file = object();
    let mut object = CodeObject::parse(&file).unwrap();
    object.kernels.clear();
    object.read_notes(&[metadata_note(), metadata_note()].concat()).unwrap();
    assert_eq!(object.kernels.len(), 2);
}

#[test]
fn kernels_and_variables_are_read() {
    let file = object();
    let object = CodeObject::parse(&file).unwrap();
    let (kernel, descriptor) = object.kernels().next().unwrap();
    assert_eq!(object.kernels().count(), 1);
    assert_eq!((kernel.name.as_str(), kernel.symbol.as_str()), ("scale", "scale.kd"));
    assert_eq!((kernel.kernarg_segment_size, kernel.kernarg_segment_align), (280, 8));
    assert_eq!((kernel.group_segment_size, kernel.private_segment_size), (1024, 16));
    assert!(kernel.uses_dynamic_stack);
    let arguments: Vec<_> = kernel.arguments.iter().map(|a| (a.offset, a.size, a.kind)).collect();
    assert_eq!(
        arguments,
        [(0, 8, ValueKind::GlobalBuffer), (8, 4, ValueKind::ByValue), (16, 4, ValueKind::Hidden)]
    );
    assert_eq!(kernel.explicit_arguments().count(), 2);
    let variables: Vec<_> = object.variables().map(|v| (v.name, v.address - descriptor, v.size)).collect();
    assert_eq!(variables, [("table".to_owned(), 64, 16), ("pointer".to_owned(), 80, 8)]);
}

#[test]
fn image_has_initial_data_and_relocated_addresses() {
    const BASE: u64 = 0x7f00_0000_0000;
    let file = object();
    let image = load(&file, BASE).unwrap();
    let object = CodeObject::parse(&file).unwrap();
    let table = object.variables().find(|variable| variable.name == "table").unwrap();
    let at = usize::try_from(table.address).unwrap();
    assert_eq!(image[at..at + 16], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    assert_eq!(image[at + 16..at + 24], (BASE + table.address + 8).to_le_bytes());
    assert_eq!(image[at + 24..at + 32], (EXTERNAL + 1).to_le_bytes());
    assert!(image[at + 32..].iter().all(|byte| *byte == 0), "memory beyond the file is zero");
    let mut image = vec![0; object.image_size()];
    assert_eq!(object.write_image(&mut image, BASE, &|_| None), Err(CodeObjectError::UndefinedSymbol));
    assert_eq!(object.write_image(&mut [], BASE, &|_| None), Err(CodeObjectError::TooLarge));
}

#[test]
fn other_files_are_rejected() {
    let file = object();
    let mut x86 = file.clone();
    x86[0x12..0x14].copy_from_slice(&62_u16.to_le_bytes());
    assert_eq!(CodeObject::parse(&x86).unwrap_err(), CodeObjectError::NotACodeObject);
    assert_eq!(CodeObject::parse(b"").unwrap_err(), CodeObjectError::Truncated);
    let mut huge = file.clone();
    huge[64 + 40..64 + 48].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(CodeObject::parse(&huge).unwrap_err(), CodeObjectError::TooLarge);
}

/// Parses and loads what may be malformed. The image of a mutated file may be large, and is then not written.
fn try_load(bytes: &[u8]) {
    if let Ok(object) = CodeObject::parse(bytes) {
        let _ = (object.kernels().count(), object.variables().count());
        if object.image_size() < 1 << 24 {
            let mut image = vec![0; object.image_size()];
            let _ = object.write_image(&mut image, u64::MAX - 5, &|_| Some(u64::MAX));
        }
    }
}

/// Objects to mutate: the one above, and one of AMD's compiler.
fn objects() -> &'static [Vec<u8>] {
    static OBJECTS: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    OBJECTS.get_or_init(|| [Some(object()), compiled()].into_iter().flatten().collect())
}

/// An object of AMD's compiler, if it is installed.
fn compiled() -> Option<Vec<u8>> {
    const SOURCE: &str = "#include <hip/hip_runtime.h>\n\
        __device__ int table[4] = {1, 2, 3, 4};\n__device__ int *pointer = &table[2];\n\
        __global__ void fill(float *to, float value, unsigned long count) { to[threadIdx.x] = value; }\n";
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.hip"), SOURCE).unwrap();
    let mut compiler = std::process::Command::new("hipcc");
    compiler.current_dir(&directory).args(["--offload-arch=gfx90a", "--genco", "-O1", "-o", "a", "a.hip"]);
    let Ok(output) = compiler.output() else {
        skipped::record_skipped("hipcc is not installed (apt-get install hipcc libamdhip64-dev)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A bundle of one object, which starts at a page.
    let bundle = std::fs::read(directory.path().join("a")).unwrap();
    let start = bundle.windows(4).position(|window| window == b"\x7fELF").unwrap();
    Some(bundle[start..].to_vec())
}

#[test]
fn object_of_amds_compiler_is_loaded() {
    use ValueKind::{ByValue, GlobalBuffer};
    let Some(file) = objects().get(1) else { return };
    let object = CodeObject::parse(file).unwrap();
    let (kernel, _) = object.kernels().next().unwrap();
    assert_eq!(kernel.name, "_Z4fillPffm");
    let explicit: Vec<_> = kernel.explicit_arguments().map(|a| (a.offset, a.size, a.kind)).collect();
    assert_eq!(explicit, [(0, 8, GlobalBuffer), (8, 4, ByValue), (16, 8, ByValue)]);
    let variables: HashMap<_, _> = object.variables().map(|v| (v.name.clone(), v)).collect();
    let mut image = vec![0; object.image_size()];
    object.write_image(&mut image, 0x1000_0000, &|_| None).unwrap();
    let at = |name: &str| usize::try_from(variables[name].address).unwrap();
    let table: Vec<u8> = [1_u32, 2, 3, 4].map(u32::to_le_bytes).concat();
    assert_eq!(image[at("table")..][..16], table);
    assert_eq!(image[at("pointer")..][..8], (0x1000_0000 + variables["table"].address + 8).to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Malformed objects are errors or load; nothing panics and nothing is read outside of the file.
    #[test]
    fn mutated_objects_never_panic(
        which in 0..2_usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let objects = objects();
        let mut file = objects[which % objects.len()].clone();
        for (at, byte, how) in changes {
            // Most fields that matter are in the headers, the note and the symbols.
            let limit = if how == 0 { file.len() } else { file.len().min(2000) };
            let at = at.index(limit);
            file[at] = match how { 1 => 0xff, 2 => file[at].wrapping_add(1), _ => byte };
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        try_load(&file);
    }

    #[test]
    fn random_metadata_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = metadata::parse(&bytes);
        // A map that claims to contain the kernels.
        let _ = metadata::parse(&[&[0x81][..], &text("amdhsa.kernels"), &bytes].concat());
    }
}

#[test]
fn deeply_nested_metadata_is_rejected() {
    assert_eq!(metadata::parse(&vec![0x91; 1 << 20]), None);
}
