//! The runtime's kernels are compared with work-items that are carried out one by one.

use proptest::prelude::*;

use super::*;
use crate::code_object::Argument;

/// A packet with arguments that are laid out as a compiler does.
struct Packet {
    kernel: Kernel,
    kernarg: Vec<u8>,
    grid: [u32; 3],
    workgroup: [u16; 3],
}

impl Packet {
    fn new(name: &str, arguments: &[(ValueKind, Vec<u8>)]) -> Self {
        let (mut kernarg, mut list) = (Vec::new(), Vec::new());
        for (kind, bytes) in arguments {
            let offset = kernarg.len().next_multiple_of(bytes.len());
            kernarg.resize(offset, 0xee);
            kernarg.extend(bytes);
            list.push(Argument { offset, size: bytes.len(), kind: *kind });
        }
        list.push(Argument { offset: kernarg.len(), size: 8, kind: ValueKind::Hidden });
        kernarg.extend([0xee; 8]);
        let kernel = Kernel {
            name: name.to_owned(),
            symbol: format!("{name}.kd"),
            kernarg_segment_size: u32::try_from(kernarg.len()).unwrap(),
            kernarg_segment_align: 8,
            group_segment_size: 0,
            private_segment_size: 0,
            uses_dynamic_stack: false,
            arguments: list,
        };
        Self { kernel, kernarg, grid: [1; 3], workgroup: [1; 3] }
    }

    /// A kernel of the runtime; addresses and numbers are by value here, because only their sizes count.
    fn builtin(name: &str, arguments: &[Vec<u8>]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|bytes| (ValueKind::ByValue, bytes.clone())).collect();
        Self::new(&format!("{BUILTIN_PREFIX}{name}"), &arguments)
    }

    fn with_grid(self, grid: [u32; 3], workgroup: u16) -> Self {
        Self { grid, workgroup: [workgroup, 1, 1], ..self }
    }

    fn start(&self) -> Execution {
        let kernarg = self.kernarg.as_ptr().expose_provenance();
        let dispatch = Dispatch { grid: self.grid, workgroup: self.workgroup, kernarg };
        // SAFETY: the tests pass valid addresses.
        unsafe { Execution::new(&self.kernel, dispatch, Duration::from_micros(20)) }
    }

    fn run(&self) {
        assert!(self.start().advance());
    }
}

fn u64s(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn u32s(value: u32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn address<T>(memory: &mut [T]) -> u64 {
    memory.as_mut_ptr().expose_provenance() as u64
}

/// What every work-item of `fillBufferAligned` does.
fn fill_by_items(to: &mut [u8], pattern: &[u8], element: usize, size: usize, chunk: usize, items: usize) {
    let pattern_size = pattern.len() / element;
    for id in 0..items {
        let mut at = id * pattern_size * element;
        while at < size {
            to[at..at + pattern.len()].copy_from_slice(pattern);
            at += chunk * element;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fill_equals_its_work_items(
        element_power in 0..5_u32,
        pattern_size in 1..5_usize,
        patterns in 0..200_usize,
        groups in 1..6_u32,
        seed in any::<[u8; 64]>(),
        is_7 in any::<bool>(),
    ) {
        const GROUP: u16 = 8;
        let element = 1 << element_power;
        let mut pattern = seed[..element * pattern_size].to_vec();
        let items = groups * u32::from(GROUP);
        // The runtime lets the work-items continue behind the last of them.
        let chunk = items as usize * pattern_size;
        let size = patterns * pattern.len();
        let mut expected = vec![0xaa_u8; size + 64];
        fill_by_items(&mut expected, &pattern, element, size, chunk, items as usize);
        let mut memory = vec![0xaa_u8; size + 64];
        let start = address(&mut memory);
        let mut arguments = vec![
            u64s(&[start]), u64s(&[address(&mut pattern)]), u32s(u32::try_from(pattern_size).unwrap()),
            u32s(1 << element_power), u64s(&[start + size as u64]), u32s(u32::try_from(chunk).unwrap()),
        ];
        if is_7 {
            arguments.push(u32s(GROUP.into()));
        }
        Packet::builtin("fillBufferAligned", &arguments).with_grid([items, 1, 1], GROUP).run();
        prop_assert_eq!(memory, expected);
    }

    #[test]
    fn copy_equals_its_work_items(
        element in prop::sample::select(vec![4_usize, 16]),
        size in 0..3000_usize,
        groups in 1..6_u32,
        is_7 in any::<bool>(),
    ) {
        const GROUP: u16 = 8;
        let items = groups * u32::from(GROUP);
        let mut from: Vec<u8> = (0..size + 16).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
        let mut memory = vec![0xaa_u8; size + 16];
        let remainder = size % element;
        let (source, start) = (address(&mut from), address(&mut memory));
        let mut arguments = vec![
            u64s(&[source]), u64s(&[start]), u64s(&[size as u64]), u32s(u32::try_from(remainder).unwrap()),
            u32s(u32::try_from(element).unwrap()), u64s(&[start + (size - remainder) as u64]), u32s(items),
        ];
        if is_7 {
            arguments.push(u32s(GROUP.into()));
        }
        Packet::builtin("copyBuffer", &arguments).with_grid([items, 1, 1], GROUP).run();
        prop_assert_eq!(&memory[..size], &from[..size]);
        prop_assert!(memory[size..].iter().all(|byte| *byte == 0xaa));
    }

    #[test]
    fn rectangle_is_copied_with_its_pitches(
        extent in [1..20_usize, 1..5_usize, 1..4_usize],
        extra in [0..7_usize, 0..3_usize, 0..7_usize, 0..3_usize],
        offsets in [0..9_usize, 0..9_usize],
        element in prop::sample::select(vec![1_usize, 4, 16]),
    ) {
        let [width, height, depth] = extent;
        let row = [width + extra[0], width + extra[2]];
        let slice = [row[0] * (height + extra[1]), row[1] * (height + extra[3])];
        let size = |n: usize| (offsets[n] + slice[n] * depth) * element;
        let mut from: Vec<u8> = (0..size(0)).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut memory = vec![0xaa_u8; size(1)];
        let mut expected = memory.clone();
        for (z, y) in (0..depth).flat_map(|z| (0..height).map(move |y| (z, y))) {
            let at = |n: usize| (offsets[n] + z * slice[n] + y * row[n]) * element;
            expected[at(1)..][..width * element].copy_from_slice(&from[at(0)..][..width * element]);
        }
        let rect = |n: usize| u64s(&[row[n], slice[n], offsets[n], 0].map(|value| value as u64));
        let name = if element == 1 { "copyBufferRect" } else { "copyBufferRectAligned" };
        let packet = Packet::builtin(name, &[
            u64s(&[address(&mut from)]), u64s(&[address(&mut memory)]), rect(0), rect(1),
            u64s(&[width, height, depth, element].map(|value| value as u64)),
        ]);
        // The grid is rounded up to whole workgroups.
        packet.with_grid([width, height, depth].map(|n| u32::try_from(n.next_multiple_of(16)).unwrap()), 16).run();
        prop_assert_eq!(memory, expected);
    }
}

#[test]
fn rows_are_filled_with_their_pitch() {
    let mut pattern = vec![0x11_u8, 0x22, 0x33, 0x44];
    for (buffer, element, columns) in [(2, 4, 5_u64), (1, 2, 10), (0, 1, 20)] {
        let mut memory = vec![0xaa_u8; 4 * 32];
        let mut buffers = [0; 4];
        buffers[buffer] = address(&mut memory);
        let mut arguments: Vec<_> = buffers.iter().map(|buffer| u64s(&[*buffer])).collect();
        let units = u32::try_from(pattern.len()).unwrap() / element;
        arguments.extend([u64s(&[address(&mut pattern)]), u32s(units)]);
        // The origin is 8 bytes, the pitch 32; three rows.
        let element = u64::from(element);
        arguments.extend([8 / element, columns, 3, 32 / element].map(|value| u64s(&[value])));
        Packet::builtin("fillBufferAligned2D", &arguments).with_grid([64, 4, 1], 16).run();
        if element != 4 {
            // Each element starts a whole pattern: its first unit remains, and the last pattern extends the row.
            assert_eq!(memory[8], 0x11);
            continue;
        }
        for row in 0..4 {
            let row_bytes = &memory[row * 32..][..32];
            let expected: Vec<u8> = if row == 3 {
                vec![0xaa; 32]
            } else {
                [vec![0xaa; 8], pattern.repeat(5), vec![0xaa; 4]].concat()
            };
            assert_eq!(row_bytes, expected, "row {row}");
        }
    }
}

#[test]
fn stream_operations_write_words_and_wait_for_them() {
    let mut words = [0_u64; 2];
    let at = address(&mut words);
    Packet::builtin("streamOpsWrite", &[u64s(&[at]), u64s(&[0]), u64s(&[0x1_2345_6789])]).run();
    Packet::builtin("streamOpsWrite", &[u64s(&[0]), u64s(&[at + 8]), u64s(&[u64::MAX - 1])]).run();
    assert_eq!(words, [0x2345_6789, u64::MAX - 1]);

    // (flags, value, mask, a word that does not satisfy the condition, and one that does), for 64 and 32 bits.
    for (flags, value, mask, early, late) in [
        (0, 5, u64::MAX, 4, 5),
        (0, 5, u64::MAX, 4, u64::MAX),
        (1, 5, 0xf, 6, 0x15),
        (2, 6, u64::MAX, 9, 4),
        (3, 0xf0, 0xff, 0x0f, 0x0e),
    ] {
        for is_32_bits in [false, true] {
            let pointers = if is_32_bits { [at, 0] } else { [0, at] };
            words[0] = early;
            let [narrow, wide] = pointers.map(|pointer| u64s(&[pointer]));
            let arguments = [narrow, wide, u64s(&[value]), u64s(&[flags]), u64s(&[mask])];
            let mut execution = Packet::builtin("streamOpsWait", &arguments).start();
            assert!(!execution.advance(), "flags {flags} at {early:#x}");
            words[0] = late;
            assert!(execution.advance(), "flags {flags} at {late:#x}");
        }
    }
}

#[test]
fn batch_carries_out_one_operation_for_each_work_item() {
    let mut words = [0_u64; 2];
    let at = address(&mut words);
    let operation = |kind: u64, address: u64, value: u64, flags: u64| vec![kind, address, value, flags, 0, 0];
    let mut parameters =
        [operation(2, at, 0xffff_ffff_0000_0007, 0), operation(4, at, 7, 1), operation(5, at + 8, 9, 0)]
            .concat();
    let packet = Packet::builtin("batchMemOp", &[u64s(&[address(&mut parameters)]), u32s(3)]);
    let mut execution = packet.with_grid([3, 1, 1], 1).start();
    assert!(execution.advance());
    assert_eq!(words, [7, 9]);
}

#[test]
fn heap_is_initialized_as_the_device_library_expects_it() {
    let mut heap = vec![0xaa_aa_aa_aa_aa_aa_aa_aa_u64; (1 << 17) / 8 + 1];
    let start = address(&mut heap);
    Packet::builtin("initHeap", &[u64s(&[start]), u64s(&[0x5000]), u32s(1 << 17), u32s(3)])
        .with_grid([256, 1, 1], 256)
        .run();
    assert_eq!(heap[108_544 / 8..][..3], [0x5000, 0x5000 + (3 << 21), 0x5000]);
    assert_eq!(heap[0], 0);
    assert_eq!(heap[(1 << 17) / 8 - 1], 0);
    assert_eq!(heap[(1 << 17) / 8], 0xaa_aa_aa_aa_aa_aa_aa_aa);
}

#[test]
fn kernels_with_other_arguments_are_not_guessed() {
    let mut memory = [0_u64; 4];
    let at = address(&mut memory);
    for name in ["streamOpsWrite", "copyBufferRect", "scheduler", "copyImage", "streamOpsIncrement"] {
        let mut execution = Packet::builtin(name, &[u64s(&[at]), u64s(&[at + 8])]).start();
        assert!(execution.advance());
    }
    // A workgroup of another size than the kernel was told.
    let fill = [u64s(&[at]), u64s(&[at + 16]), u32s(1), u32s(8), u64s(&[at + 8]), u32s(1), u32s(64)];
    memory[2] = 5;
    Packet::builtin("fillBufferAligned", &fill).with_grid([256, 1, 1], 256).run();
    assert_eq!(memory, [0, 0, 5, 0]);
}

#[test]
fn test_programs_kernels_are_recognised_by_name_and_arguments() {
    use ValueKind::{ByValue, GlobalBuffer};
    let number = |value: u64| (ByValue, u64s(&[value]));
    let spin = Packet::new("_Z8spin_lowmm", &[number(7000), number(3)]).start();
    assert_eq!((spin.duration(), spin.label()), (Duration::from_micros(7), Some(3)));
    let other = Packet::new("_Z6kernelm", &[number(7000)]).start();
    assert_eq!((other.duration(), other.label()), (Duration::from_micros(20), None));

    let mut counter = [41_u64];
    Packet::new("_Z9incrementPm", &[(GlobalBuffer, u64s(&[address(&mut counter)]))]).run();
    assert_eq!(counter, [42]);
    let (mut to, mut from) = ([1_f32; 4], [2_f32; 4]);
    let pointer = |memory: &mut [f32]| (GlobalBuffer, u64s(&[address(memory)]));
    let value = (ByValue, 5_f32.to_le_bytes().to_vec());
    Packet::new("_Z4fillPffm", &[pointer(&mut to), value.clone(), number(3)]).run();
    assert_eq!(to.map(f32::to_bits), [5.0, 5.0, 5.0, 1.0].map(f32::to_bits));
    Packet::new("_ZN1a3addIfEEvPT_PKS1_i", &[pointer(&mut to), pointer(&mut from), (ByValue, u32s(2))]).run();
    assert_eq!(to.map(f32::to_bits), [7.0, 7.0, 5.0, 1.0].map(f32::to_bits));
    // A kernel of a library with the same name and other arguments changes nothing.
    Packet::new("_Z4fillPfm", &[pointer(&mut to), number(4)]).run();
    Packet::new("_Z3addPfPKfi", &[pointer(&mut to), pointer(&mut from), (ByValue, u32s(u32::MAX))]).run();
    assert_eq!(to.map(f32::to_bits), [7.0, 7.0, 5.0, 1.0].map(f32::to_bits));
}

#[test]
fn kernels_of_a_collective_end_when_all_have_arrived() {
    let mut arrived = [0_u64, 7];
    let at = address(&mut arrived);
    let number = |value: u64| (ValueKind::ByValue, u64s(&[value]));
    let arguments = [number(30_000), (ValueKind::GlobalBuffer, u64s(&[at])), number(2), number(5)];
    let packet = || Packet::new("_Z4meetmPmmm", &arguments);
    let (mut first, mut second) = (packet().start(), packet().start());
    assert_eq!((first.duration(), first.label()), (Duration::from_micros(30), Some(5)));
    assert!(!first.advance());
    // It arrives once, however often it looks.
    assert!(!first.advance());
    assert_eq!(arrived, [1, 7]);
    assert!(second.advance());
    assert!(first.advance());
    assert_eq!(arrived, [2, 7]);
}

#[test]
fn base_name_is_found_in_mangled_names() {
    for (mangled, name) in [
        ("_Z4spinm", "spin"),
        ("_ZL4spinm", "spin"),
        ("spin", "spin"),
        ("_ZN12_GLOBAL__N_14spinEm", "spin"),
        ("_ZN1a3addIfEEvPT_PKS1_m", "add"),
        ("_Z", "_Z"),
        ("_Z99spin", "_Z99spin"),
        ("_ZN", "_ZN"),
        ("_Z99999999999999999999999spin", "_Z99999999999999999999999spin"),
    ] {
        assert_eq!(base_name(mangled), name);
    }
}
