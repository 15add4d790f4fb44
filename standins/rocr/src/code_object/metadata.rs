//! The metadata note of a code object: kernels and their arguments, in `MessagePack`.

/// How an argument is passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// The bytes themselves.
    ByValue,
    /// The address of device memory.
    GlobalBuffer,
    /// An argument that the program passes in another way: an image, a sampler, dynamic local memory, a queue.
    Other,
    /// An argument that the runtime adds: sizes of the grid, buffers for printing, and the like.
    Hidden,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) offset: usize,
    pub(crate) size: usize,
    pub(crate) kind: ValueKind,
}

/// A kernel as the metadata describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// The mangled name.
    pub(crate) name: String,
    /// The symbol of its descriptor.
    pub(crate) symbol: String,
    pub(crate) kernarg_segment_size: u32,
    pub(crate) kernarg_segment_align: u32,
    pub(crate) group_segment_size: u32,
    pub(crate) private_segment_size: u32,
    pub(crate) uses_dynamic_stack: bool,
    /// All arguments, the hidden ones last.
    pub(crate) arguments: Vec<Argument>,
}

impl Kernel {
    /// The arguments that the program passes.
    pub(crate) fn explicit_arguments(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(|argument| argument.kind != ValueKind::Hidden)
    }
}

/// A value of the subset of `MessagePack` that AMD's tools write.
#[derive(Debug, Clone, PartialEq)]
enum Value<'a> {
    Unsigned(u64),
    Text(&'a str),
    Array(Vec<Value<'a>>),
    Map(Vec<(Value<'a>, Value<'a>)>),
    Boolean(bool),
    /// Values that no field below needs: nil, negative numbers, floats, binary data, extensions.
    Ignored,
}

/// Deeper nesting is rejected: the reader is recursive, and the metadata has five levels.
const MAX_DEPTH: u32 = 32;

struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn big_endian(&mut self, size: usize) -> Option<u64> {
        Some(self.take(size)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn length(&mut self, size: usize) -> Option<usize> {
        self.big_endian(size)?.try_into().ok()
    }

    fn skip(&mut self, size: usize) -> Option<Value<'a>> {
        self.take(size)?;
        Some(Value::Ignored)
    }

    fn text(&mut self, size: usize) -> Option<Value<'a>> {
        std::str::from_utf8(self.take(size)?).ok().map(Value::Text)
    }

    // Elements are counted by the file but allocated one by one: a wrong count ends at the end of the file.
    fn array(&mut self, count: usize, depth: u32) -> Option<Value<'a>> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(self.value(depth + 1)?);
        }
        Some(Value::Array(values))
    }

    fn map(&mut self, count: usize, depth: u32) -> Option<Value<'a>> {
        let mut values = Vec::new();
        for _ in 0..count {
            values.push((self.value(depth + 1)?, self.value(depth + 1)?));
        }
        Some(Value::Map(values))
    }

    fn value(&mut self, depth: u32) -> Option<Value<'a>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let tag = self.take(1)?[0];
        let low = usize::from(tag);
        match tag {
            0x00..=0x7f => Some(Value::Unsigned(u64::from(tag))),
            0x80..=0x8f => self.map(low & 0xf, depth),
            0x90..=0x9f => self.array(low & 0xf, depth),
            0xa0..=0xbf => self.text(low & 0x1f),
            0xc0 | 0xe0..=0xff => Some(Value::Ignored),
            0xc1 => None,
            0xc2 | 0xc3 => Some(Value::Boolean(tag == 0xc3)),
            0xc4..=0xc6 => {
                let size = self.length(1 << (tag - 0xc4))?;
                self.skip(size)
            }
            0xc7..=0xc9 => {
                let size = self.length(1 << (tag - 0xc7))?;
                self.skip(size.checked_add(1)?)
            }
            0xca => self.skip(4),
            0xcb => self.skip(8),
            0xcc..=0xcf => self.big_endian(1 << (tag - 0xcc)).map(Value::Unsigned),
            // A signed number that is not negative has the value of its bits.
            0xd0..=0xd3 => {
                let size = 1 << (tag - 0xd0);
                let value = self.big_endian(size)?;
                let is_negative = value >> (8 * size - 1) != 0;
                Some(if is_negative { Value::Ignored } else { Value::Unsigned(value) })
            }
            0xd4..=0xd8 => self.skip((1 << (tag - 0xd4)) + 1),
            0xd9..=0xdb => {
                let size = self.length(1 << (tag - 0xd9))?;
                self.text(size)
            }
            0xdc | 0xdd => {
                let count = self.length(2 << (tag - 0xdc))?;
                self.array(count, depth)
            }
            0xde | 0xdf => {
                let count = self.length(2 << (tag - 0xde))?;
                self.map(count, depth)
            }
        }
    }
}

impl<'a> Value<'a> {
    fn get(&self, key: &str) -> Option<&Value<'a>> {
        let Value::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| *name == Value::Text(key)).map(|(_, value)| value)
    }

    fn array(&self) -> Option<&[Value<'a>]> {
        if let Value::Array(values) = self { Some(values) } else { None }
    }

    fn text(&self) -> Option<&'a str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    fn number<T: TryFrom<u64>>(&self) -> Option<T> {
        if let Value::Unsigned(number) = self { T::try_from(*number).ok() } else { None }
    }

    /// A number that may be absent, which means 0; none if it is something else.
    fn optional_number<T: TryFrom<u64> + Default>(&self, key: &str) -> Option<T> {
        self.get(key).map_or(Some(T::default()), Value::number)
    }
}

/// The largest segment of arguments; AMD's compiler rejects more than 4 KiB of them.
const MAX_KERNARG_SIZE: usize = 1 << 20;

fn argument(value: &Value<'_>) -> Option<Argument> {
    let kind = match value.get(".value_kind")?.text()? {
        "by_value" => ValueKind::ByValue,
        "global_buffer" => ValueKind::GlobalBuffer,
        hidden if hidden.starts_with("hidden_") => ValueKind::Hidden,
        _ => ValueKind::Other,
    };
    let (offset, size): (usize, usize) = (value.get(".offset")?.number()?, value.get(".size")?.number()?);
    (offset <= MAX_KERNARG_SIZE && size <= MAX_KERNARG_SIZE).then_some(Argument { offset, size, kind })
}

fn kernel(value: &Value<'_>) -> Option<Kernel> {
    let arguments = match value.get(".args") {
        Some(arguments) => arguments.array()?.iter().map(argument).collect::<Option<_>>()?,
        None => Vec::new(),
    };
    Some(Kernel {
        name: value.get(".name")?.text()?.to_owned(),
        symbol: value.get(".symbol")?.text()?.to_owned(),
        kernarg_segment_size: value.optional_number(".kernarg_segment_size")?,
        kernarg_segment_align: value.optional_number(".kernarg_segment_align")?,
        group_segment_size: value.optional_number(".group_segment_fixed_size")?,
        private_segment_size: value.optional_number(".private_segment_fixed_size")?,
        uses_dynamic_stack: value.get(".uses_dynamic_stack") == Some(&Value::Boolean(true)),
        arguments,
    })
}

/// The kernels of a metadata note; none if it is malformed.
pub(super) fn parse(note: &[u8]) -> Option<Vec<Kernel>> {
    let root = Parser(note).value(0)?;
    // An object with variables only has no list of kernels.
    root.get("amdhsa.kernels")
        .map_or(Some(Vec::new()), |kernels| kernels.array()?.iter().map(kernel).collect())
}
