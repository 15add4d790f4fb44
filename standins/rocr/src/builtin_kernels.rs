//! What a dispatched kernel does.
//!
//! AMD's HIP runtime carries out fills, small copies, copies of rectangles and stream operations by kernels of its own, which
//! it compiles at its start (`__amd_rocclr_*`). Programs see their results, so the stand-in executes them: the argument
//! lists are those of HIP 6.4 and 7.2, the effects those of AMD's device libraries.
//!
//! | kernel | effect here |
//! |---|---|
//! | `fillBufferAligned`, `fillBufferAligned2D` | memory is filled |
//! | `copyBuffer`, `copyBufferAligned`, `copyBufferRect`, `copyBufferRectAligned` | memory is copied |
//! | `streamOpsWrite`, `streamOpsWait`, `batchMemOp` | a word is written, or the kernel runs until the word has a value |
//! | `initHeap` | the heap of the device's `malloc` is initialized |
//! | `gwsInit` | none: it sets a counter of the hardware that only other kernels see |
//! | the other ones: images, device-side enqueue | reported once on standard error |
//!
//! Kernels of tests that are recognised by their name ([`test_kernel`]) change memory, too. Every other kernel is timed
//! work without a result.

mod memory;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::code_object::{Kernel, ValueKind};
use memory::{Comparison, Step};

/// What a dispatch packet says about a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dispatch {
    /// In work-items.
    pub(crate) grid: [u32; 3],
    pub(crate) workgroup: [u16; 3],
    /// The address of the arguments.
    pub(crate) kernarg: usize,
}

/// How long the smallest kernel of the runtime takes.
const BUILTIN_KERNEL_TIME: Duration = Duration::from_micros(2);
/// The simulated memory bandwidth, in bytes per nanosecond.
const BYTES_PER_NANOSECOND: u64 = 1000;

const BUILTIN_PREFIX: &str = "__amd_rocclr_";
/// The kernel of a collective in test programs: see [`test_kernel`].
const COLLECTIVE: &str = "meet";

/// A kernel that was started.
#[derive(Debug)]
pub(crate) struct Execution {
    duration: Duration,
    label: Option<u64>,
    steps: VecDeque<Step>,
}

impl Execution {
    /// Reads the arguments of a kernel. A kernel without an effect takes `otherwise`.
    ///
    /// # Safety
    /// The packet must be valid: its arguments have the size that the kernel's metadata gives, and the addresses among
    /// them are valid for what the kernel does, until [`Self::advance`] has returned true.
    pub(crate) unsafe fn new(kernel: &Kernel, dispatch: Dispatch, otherwise: Duration) -> Self {
        // SAFETY: as the caller guarantees.
        let arguments = unsafe { Arguments::read(kernel, dispatch.kernarg) };
        if let Some(name) = kernel.name.strip_prefix(BUILTIN_PREFIX) {
            // SAFETY: as the caller guarantees.
            let steps = unsafe { builtin(name, &arguments, dispatch) }.unwrap_or_else(|| {
                report_once(&kernel.name);
                Vec::new()
            });
            let bytes: u64 = steps.iter().map(Step::bytes).sum();
            let duration = BUILTIN_KERNEL_TIME + Duration::from_nanos(bytes / BYTES_PER_NANOSECOND);
            return Self { duration, label: None, steps: steps.into() };
        }
        test_kernel(base_name(&kernel.name), &arguments).unwrap_or(Self {
            duration: otherwise,
            label: None,
            steps: VecDeque::new(),
        })
    }

    /// How long the kernel runs, without the time for which it waits.
    pub(crate) fn duration(&self) -> Duration {
        self.duration
    }

    /// The number by which a program identifies the launch: see [`test_kernel`].
    pub(crate) fn label(&self) -> Option<u64> {
        self.label
    }

    /// Changes memory; returns whether the kernel has ended. False means that it waits for a word: call again.
    pub(crate) fn advance(&mut self) -> bool {
        while let Some(step) = self.steps.front() {
            // SAFETY: `new` got a valid packet.
            if !unsafe { step.perform() } {
                return false;
            }
            self.steps.pop_front();
        }
        true
    }
}

/// Reports a kernel of the runtime that is not implemented, or has other arguments than the known versions.
fn report_once(name: &str) {
    static REPORTED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.get_or_insert_default().insert(name.to_owned()) {
        eprintln!("rocr stand-in: the kernel {name} is not implemented, memory is unchanged");
    }
}

/// The bytes of the arguments that the program passed.
struct Arguments(Vec<(ValueKind, Vec<u8>)>);

impl Arguments {
    /// # Safety
    /// `kernarg` is null, or has the size that the kernel's metadata gives.
    unsafe fn read(kernel: &Kernel, kernarg: usize) -> Self {
        let size = usize::try_from(kernel.kernarg_segment_size).unwrap_or(0);
        let fits = |end: Option<usize>| kernarg != 0 && end.is_some_and(|end| end <= size);
        let arguments = kernel.explicit_arguments();
        let values = arguments.filter(|argument| fits(argument.offset.checked_add(argument.size)));
        let read = |offset: usize, size: usize| {
            let start = std::ptr::with_exposed_provenance::<u8>(kernarg + offset);
            // SAFETY: within the segment, as checked above; the program does not change the arguments of a kernel
            // that was submitted.
            unsafe { std::slice::from_raw_parts(start, size) }.to_vec()
        };
        Self(values.map(|argument| (argument.kind, read(argument.offset, argument.size))).collect())
    }

    fn has_sizes(&self, sizes: &[usize]) -> bool {
        self.0.iter().map(|(_, bytes)| bytes.len()).eq(sizes.iter().copied())
    }

    /// The first eight bytes of an argument as a number.
    fn number(&self, n: usize) -> u64 {
        self.numbers(n)[0]
    }

    /// An argument as a vector of four numbers.
    fn numbers(&self, n: usize) -> [u64; 4] {
        let mut words = [0; 4];
        let bytes = self.0.get(n).map_or(&[][..], |(_, bytes)| bytes);
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(padded);
        }
        words
    }

    fn size(&self, n: usize) -> usize {
        usize::try_from(self.number(n)).unwrap_or(usize::MAX)
    }

    /// A count of elements: an `int`, of which a negative one means none, or 64 bits.
    fn count(&self, n: usize) -> usize {
        let is_negative = self.0.get(n).is_some_and(|(_, bytes)| bytes.len() == 4 && bytes[3] & 0x80 != 0);
        if is_negative { 0 } else { self.size(n) }
    }
}

/// The effect of one of the runtime's kernels; none if the kernel, or its list of arguments, is unknown.
///
/// # Safety
/// As for [`Execution::new`].
unsafe fn builtin(name: &str, a: &Arguments, dispatch: Dispatch) -> Option<Vec<Step>> {
    let items = dispatch.grid.map(|items| usize::try_from(items).unwrap_or(usize::MAX));
    match name {
        // buf, pattern, pattern_size, alignment, end_ptr, next_chunk; since 7.x workgroup_size.
        "fillBufferAligned"
            if a.has_sizes(&[8, 8, 4, 4, 8, 4])
                || has_workgroup_size(a, &[8, 8, 4, 4, 8, 4, 4], dispatch) =>
        {
            let element = match a.size(3) {
                size @ (2 | 4 | 8 | 16) => size,
                _ => 1,
            };
            // SAFETY: as the caller guarantees.
            let pattern = unsafe { memory::read(a.size(1), a.size(2).checked_mul(element)?) };
            Some(memory::fill_chunks(a.size(0), &pattern, element, a.size(4), a.size(5), items[0]))
        }
        // bufUChar, bufUShort, bufUInt, bufULong, pattern, patternSize, offset, width, height, pitch.
        "fillBufferAligned2D" if a.has_sizes(&[8, 8, 8, 8, 8, 4, 8, 8, 8, 8]) => {
            let (buffer, element) =
                [(3, 8), (2, 4), (1, 2), (0, 1)].into_iter().find(|(n, _)| a.number(*n) != 0)?;
            // SAFETY: as the caller guarantees.
            let pattern = unsafe { memory::read(a.size(4), a.size(5).checked_mul(element)?) };
            Some(vec![Step::FillRows {
                to: a.size(buffer) + a.size(6) * element,
                element,
                columns: a.size(7).min(items[0]),
                rows: a.size(8).min(items[1]),
                pitch: a.size(9) * element,
                pattern,
            }])
        }
        // src, dst, size, remainder, aligned_size, end_ptr, next_chunk; since 7.x workgroup_size.
        "copyBuffer"
            if a.has_sizes(&[8, 8, 8, 4, 4, 8, 4])
                || has_workgroup_size(a, &[8, 8, 8, 4, 4, 8, 4, 4], dispatch) =>
        {
            let element = if a.size(4) == 16 { 16 } else { 4 };
            let mut steps =
                memory::copy_chunks(a.size(0), a.size(1), element, a.size(5), a.size(6), items[0]);
            let (size, remainder) = (a.size(2), a.size(3));
            if remainder != 0 {
                let start = size.checked_sub(remainder)?;
                steps.push(Step::copy(a.size(0) + start, a.size(1) + start, remainder));
            }
            Some(steps)
        }
        // src, dst, srcOrigin, dstOrigin, size, alignment; origins and size in elements.
        "copyBufferAligned" if a.has_sizes(&[8, 8, 8, 8, 8, 4]) => {
            let element = if a.size(5) == 16 { 16 } else { 4 };
            let (from, to) = (a.size(0) + a.size(2) * element, a.size(1) + a.size(3) * element);
            Some(vec![Step::copy(from, to, a.size(4).min(items[0]) * element)])
        }
        // src, dst, srcRect, dstRect (row pitch, slice pitch, offset), size (and the size of an element).
        "copyBufferRect" | "copyBufferRectAligned" if a.has_sizes(&[8, 8, 32, 32, 32]) => {
            let size = a.numbers(4).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
            let element = match name {
                "copyBufferRect" => 1,
                _ if size[3] == 16 => 16,
                _ => 4,
            };
            let rect = |n: usize| {
                a.numbers(n).map(|number| usize::try_from(number).unwrap_or(usize::MAX).wrapping_mul(element))
            };
            let (source, destination) = (rect(2), rect(3));
            Some(vec![Step::CopyRect {
                from: a.size(0).wrapping_add(source[2]),
                from_pitches: [source[0], source[1]],
                to: a.size(1).wrapping_add(destination[2]),
                to_pitches: [destination[0], destination[1]],
                extent: [size[0].min(items[0]) * element, size[1].min(items[1]), size[2].min(items[2])],
            }])
        }
        // ptrInt, ptrUlong, value.
        "streamOpsWrite" if a.has_sizes(&[8, 8, 8]) => {
            let is_32_bits = a.number(0) != 0;
            let to = a.size(usize::from(!is_32_bits));
            Some(vec![Step::Write { to, value: a.number(2), is_32_bits }])
        }
        // ptrInt, ptrUlong, value, flags, mask.
        "streamOpsWait" if a.has_sizes(&[8, 8, 8, 8, 8]) => {
            let is_32_bits = a.number(0) != 0;
            let at = a.size(usize::from(!is_32_bits));
            Some(wait(a.number(3), at, a.number(2), a.number(4), is_32_bits).into_iter().collect())
        }
        // params, count. Each work-item carries out one operation; the runtime launches as many as it wants.
        "batchMemOp" if a.has_sizes(&[8, 4]) => {
            // SAFETY: as the caller guarantees.
            Some(unsafe { batch(a.size(0), items[0]) })
        }
        // heap_to_initialize, initial_blocks, heap_size, number_of_initial_blocks.
        "initHeap" if a.has_sizes(&[8, 8, 4, 4]) => {
            let (heap, blocks) = (a.size(0), a.number(1));
            let end = blocks.wrapping_add(a.number(3) << 21);
            let word = |offset, value| Step::Write { to: heap + offset, value, is_32_bits: false };
            let mut steps = vec![word(108_544, blocks), word(108_552, end), word(108_560, blocks)];
            if a.number(2) != 0 {
                steps.insert(0, Step::fill(heap, 1 << 17, &[0]));
            }
            Some(steps)
        }
        "gwsInit" if a.has_sizes(&[4]) => Some(Vec::new()),
        _ => None,
    }
}

/// Whether the last argument is the size of a workgroup, and is that of the dispatch.
///
/// The kernels compute the ids of their work-items from it.
fn has_workgroup_size(arguments: &Arguments, sizes: &[usize], dispatch: Dispatch) -> bool {
    arguments.has_sizes(sizes) && arguments.number(sizes.len() - 1) == u64::from(dispatch.workgroup[0])
}

/// A wait as the runtime's flags describe it. Unknown flags wait for nothing, as in the kernel.
fn wait(flags: u64, at: usize, value: u64, mask: u64, is_32_bits: bool) -> Option<Step> {
    let comparison = match flags {
        0 => Comparison::GreaterOrEqual,
        1 => Comparison::Equal,
        2 => Comparison::And,
        3 => Comparison::Nor,
        _ => return None,
    };
    Some(Step::Wait { at, value, mask, comparison, is_32_bits })
}

/// The operations of `hipStreamBatchMemOp`: `hipStreamBatchMemOpParams`, 48 bytes each.
///
/// # Safety
/// There are `count` operations at `parameters`.
unsafe fn batch(parameters: usize, count: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for n in 0..count {
        // SAFETY: as the caller guarantees.
        let bytes = unsafe { memory::read(parameters + n * 48, 48) };
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let (address, value) = (usize::try_from(word(8)).unwrap_or(0), word(16));
        let (operation, flags) = (word(0) & 0xffff_ffff, word(24) & 0xffff_ffff);
        let is_32_bits = matches!(operation, 1 | 2);
        let value = if is_32_bits { value & 0xffff_ffff } else { value };
        match operation {
            1 | 4 => steps.extend(wait(flags, address, value, u64::MAX, is_32_bits)),
            2 | 5 => steps.push(Step::Write { to: address, value, is_32_bits }),
            _ => report_once("__amd_rocclr_batchMemOp (a barrier or flush)"),
        }
    }
    steps
}

/// The kernels of test programs, recognised by name and arguments.
///
/// | kernel | effect |
/// |---|---|
/// | `spin...(u64 nanoseconds, ...)` | takes that long |
/// | `increment(u64 *counter, ...)` | adds 1 |
/// | `fill(float *to, float value, int or u64 count, ...)` | fills |
/// | `add(float *to, float *from, int or u64 count, ...)` | adds, element by element |
/// | `meet(u64 nanoseconds, u64 *arrived, u64 expected, ...)` | takes that long, adds 1, and runs until all have arrived |
///
/// A further argument of eight bytes is the label of the launch.
fn test_kernel(name: &str, a: &Arguments) -> Option<Execution> {
    use ValueKind::{ByValue, GlobalBuffer};
    let shape: Vec<(ValueKind, usize)> = a.0.iter().map(|(kind, bytes)| (*kind, bytes.len())).collect();
    let (number, address, float) = ((ByValue, 8), (GlobalBuffer, 8), (ByValue, 4));
    // An int as a count has the size of a float.
    let is_count = |shape: &(ValueKind, usize)| *shape == number || *shape == float;
    let (steps, used) = match (name, &shape[..]) {
        (name, [first, ..]) if name.starts_with("spin") && *first == number => (Vec::new(), 1),
        ("increment", [first, ..]) if *first == address => (vec![Step::Increment { counter: a.size(0) }], 1),
        ("fill", [to, value, count, ..]) if *to == address && *value == float && is_count(count) => {
            let bytes = a.number(1).to_le_bytes();
            (vec![Step::fill(a.size(0), a.count(2).checked_mul(4)?, &bytes[..4])], 3)
        }
        ("add", [to, from, count, ..]) if *to == address && *from == address && is_count(count) => {
            (vec![Step::AddFloats { to: a.size(0), from: a.size(1), count: a.count(2) }], 3)
        }
        (COLLECTIVE, [time, arrived, expected, ..])
            if *time == number && *arrived == address && *expected == number =>
        {
            let at = a.size(1);
            let (value, mask, comparison) = (a.number(2), u64::MAX, Comparison::GreaterOrEqual);
            let wait = Step::Wait { at, value, mask, comparison, is_32_bits: false };
            (vec![Step::Increment { counter: at }, wait], 3)
        }
        _ => return None,
    };
    let label = match &shape[used..] {
        [] => None,
        [label] if *label == number => Some(a.number(used)),
        _ => return None,
    };
    // The first argument is a time or an address.
    let duration = if shape.first() == Some(&number) {
        Duration::from_nanos(a.number(0))
    } else {
        let bytes: u64 = steps.iter().map(Step::bytes).sum();
        BUILTIN_KERNEL_TIME + Duration::from_nanos(bytes / BYTES_PER_NANOSECOND)
    };
    Some(Execution { duration, label, steps: steps.into() })
}

/// Whether a kernel is that of a collective in a test program.
pub(crate) fn is_collective(kernel: &Kernel) -> bool {
    base_name(&kernel.name) == COLLECTIVE
}

/// The name of a function without namespaces, template arguments and parameters; of an unmangled name, the name.
fn base_name(mangled: &str) -> &str {
    let Some(rest) = mangled.strip_prefix("_Z") else { return mangled };
    let nested = rest.strip_prefix('N');
    let mut rest = nested.unwrap_or(rest).trim_start_matches(['L', 'K']);
    let mut name = mangled;
    loop {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let Ok(length) = rest[..digits].parse::<usize>() else { return name };
        let Some(found) = rest[digits..].get(..length) else { return name };
        (name, rest) = (found, &rest[digits + length..]);
        if nested.is_none() {
            return name;
        }
    }
}
