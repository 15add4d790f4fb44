//! AMD code objects: what the compiler produces and the runtime loads on a device.
//!
//! A code object is an ELF shared object for `EM_AMDGPU`. This reader takes from it
//! - the segments, which [`CodeObject::write_image`] lays out and relocates as the loader of `ROCr` does,
//! - the symbols: device variables and kernel descriptors (`NAME.kd`),
//! - the metadata note ([`metadata`]): the kernels with their arguments.
//!
//! Nothing in the file is trusted: every offset and size is checked, and a malformed file is an error.

mod metadata;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

pub(crate) use metadata::{Argument, Kernel, ValueKind};

/// Why a file is not a code object that can be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CodeObjectError {
    /// The file ends before something that it refers to.
    #[error("the file is truncated, or refers to data outside of it")]
    Truncated,
    /// Another kind of file.
    #[error("the file is not an ELF file for AMD GPUs (64 bits, little endian, EM_AMDGPU)")]
    NotACodeObject,
    /// The segments do not fit the address space of a code object.
    #[error("the segments take more than {} MiB", MAX_IMAGE_SIZE >> 20)]
    TooLarge,
    /// The note with the kernels' metadata is malformed.
    #[error("the metadata of the kernels is malformed")]
    Metadata,
    /// A relocation of a type that AMD's loader does not apply either.
    #[error("relocation type {0} is not supported")]
    Relocation(u32),
    /// A relocation refers to a symbol that neither the file nor the program defines.
    #[error("a symbol that the code refers to is not defined")]
    UndefinedSymbol,
}

/// The largest image that is loaded. The largest ones of AMD's libraries take about 200 MiB.
const MAX_IMAGE_SIZE: u64 = 2 << 30;

/// A device variable, or any other named object that is not a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// Relative to the start of the image.
    pub(crate) address: u64,
    pub(crate) size: u64,
}

#[derive(Debug)]
struct Segment {
    address: u64,
    file: Range<usize>,
}

#[derive(Debug)]
struct Symbol {
    name: String,
    address: u64,
    size: u64,
    kind: u8,
    is_defined: bool,
}

#[derive(Debug)]
struct Relocation {
    address: u64,
    kind: u32,
    symbol: usize,
    addend: i64,
}

/// A parsed code object.
#[derive(Debug)]
pub(crate) struct CodeObject<'a> {
    bytes: &'a [u8],
    segments: Vec<Segment>,
    image_size: u64,
    symbols: Vec<Symbol>,
    relocations: Vec<Relocation>,
    kernels: Vec<Kernel>,
}

/// `EM_AMDGPU`.
const MACHINE_AMDGPU: u16 = 224;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const SHT_RELA: u32 = 4;
const SHT_DYNSYM: u32 = 11;
/// Relocations of other sections belong to the linker.
const SHF_ALLOC: u64 = 2;
const STT_OBJECT: u8 = 1;
const NT_AMDGPU_METADATA: u32 = 32;
const DESCRIPTOR_SUFFIX: &str = ".kd";
/// `hsa_kernel_descriptor_t`.
const DESCRIPTOR_SIZE: u64 = 64;

/// Relocation types that occur in linked code objects.
mod relocation {
    pub(super) const NONE: u32 = 0;
    pub(super) const ABS32_LO: u32 = 1;
    pub(super) const ABS32_HI: u32 = 2;
    pub(super) const ABS64: u32 = 3;
    pub(super) const ABS32: u32 = 6;
    pub(super) const RELATIVE64: u32 = 13;
}

/// Bounds-checked reads of little-endian numbers.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(self, at: u64) -> Result<[u8; N], CodeObjectError> {
        let range = self.range(at, N as u64)?;
        self.0[range].try_into().map_err(|_| CodeObjectError::Truncated)
    }

    fn u16(self, at: u64) -> Result<u16, CodeObjectError> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(self, at: u64) -> Result<u32, CodeObjectError> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(self, at: u64) -> Result<u64, CodeObjectError> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// `size` bytes at `at`, if the file has them.
    fn range(self, at: u64, size: u64) -> Result<Range<usize>, CodeObjectError> {
        let end = at.checked_add(size).ok_or(CodeObjectError::Truncated)?;
        let (start, end) = (usize::try_from(at), usize::try_from(end));
        match (start, end) {
            (Ok(start), Ok(end)) if end <= self.0.len() => Ok(start..end),
            _ => Err(CodeObjectError::Truncated),
        }
    }

    fn slice(self, at: u64, size: u64) -> Result<&'a [u8], CodeObjectError> {
        Ok(&self.0[self.range(at, size)?])
    }

    /// The offsets of `count` entries of `size` bytes, which start at `at` and are all within the file.
    fn entries(
        self,
        at: u64,
        size: u64,
        count: u64,
    ) -> Result<impl Iterator<Item = u64> + use<>, CodeObjectError> {
        self.range(at, size.checked_mul(count).ok_or(CodeObjectError::Truncated)?)?;
        Ok((0..count).map(move |n| at + n * size))
    }

    /// The string that starts at `at` in a table of strings.
    fn string(self, table: &Range<usize>, at: u32) -> Result<String, CodeObjectError> {
        let table = &self.0[table.clone()];
        let start = usize::try_from(at).ok().filter(|start| *start <= table.len());
        let rest = &table[start.ok_or(CodeObjectError::Truncated)?..];
        let end = rest.iter().position(|byte| *byte == 0).ok_or(CodeObjectError::Truncated)?;
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }
}

impl<'a> CodeObject<'a> {
    /// Parses a code object.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, CodeObjectError> {
        let read = Reader(bytes);
        let header: [u8; 64] = read.array(0)?;
        // 64 bits, little endian.
        if header[..6] != *b"\x7fELF\x02\x01" || read.u16(0x12)? != MACHINE_AMDGPU {
            return Err(CodeObjectError::NotACodeObject);
        }
        let mut object = CodeObject {
            bytes,
            segments: Vec::new(),
            image_size: 0,
            symbols: Vec::new(),
            relocations: Vec::new(),
            kernels: Vec::new(),
        };
        object.read_segments(read)?;
        object.read_sections(read)?;
        Ok(object)
    }

    fn read_segments(&mut self, read: Reader<'a>) -> Result<(), CodeObjectError> {
        let (start, size, count) = (read.u64(0x20)?, read.u16(0x36)?, read.u16(0x38)?);
        if count > 0 && size < 56 {
            return Err(CodeObjectError::Truncated);
        }
        for at in read.entries(start, size.into(), count.into())? {
            let (offset, address) = (read.u64(at + 8)?, read.u64(at + 16)?);
            let (file_size, memory_size) = (read.u64(at + 32)?, read.u64(at + 40)?);
            match read.u32(at)? {
                PT_LOAD => {
                    let file = read.range(offset, file_size)?;
                    let end = address.checked_add(memory_size.max(file_size));
                    let end = end.filter(|end| *end <= MAX_IMAGE_SIZE).ok_or(CodeObjectError::TooLarge)?;
                    self.image_size = self.image_size.max(end);
                    self.segments.push(Segment { address, file });
                }
                PT_NOTE => self.read_notes(read.slice(offset, file_size)?)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_notes(&mut self, mut notes: &[u8]) -> Result<(), CodeObjectError> {
        while notes.len() >= 12 {
            let read = Reader(notes);
            let (name_size, size, kind) = (read.u32(0)?, read.u32(4)?, read.u32(8)?);
            let name_end = 12 + u64::from(name_size).next_multiple_of(4);
            let content = read.slice(name_end, size.into())?;
            if kind == NT_AMDGPU_METADATA && read.slice(12, name_size.into())? == b"AMDGPU\0" {
                // A linked code object has one note for each object file.
                self.kernels.extend(metadata::parse(content).ok_or(CodeObjectError::Metadata)?);
            }
            let end = name_end + u64::from(size).next_multiple_of(4);
            notes = usize::try_from(end).ok().and_then(|end| notes.get(end..)).unwrap_or(&[]);
        }
        Ok(())
    }

    fn read_sections(&mut self, read: Reader<'a>) -> Result<(), CodeObjectError> {
        let (start, size, count) = (read.u64(0x28)?, read.u16(0x3a)?, read.u16(0x3c)?);
        if count > 0 && size < 64 {
            return Err(CodeObjectError::Truncated);
        }
        let sections: Vec<u64> = read.entries(start, size.into(), count.into())?.collect();
        let content = |at: u64| read.range(read.u64(at + 0x18)?, read.u64(at + 0x20)?);
        for at in &sections {
            if read.u32(at + 4)? == SHT_DYNSYM {
                let link = usize::try_from(read.u32(at + 0x28)?).unwrap_or(usize::MAX);
                let strings = content(*sections.get(link).ok_or(CodeObjectError::Truncated)?)?;
                self.read_symbols(read, &content(*at)?, &strings)?;
            }
        }
        for at in &sections {
            if read.u32(at + 4)? == SHT_RELA && read.u64(at + 8)? & SHF_ALLOC != 0 {
                self.read_relocations(read, &content(*at)?)?;
            }
        }
        Ok(())
    }

    fn read_symbols(
        &mut self,
        read: Reader<'a>,
        table: &Range<usize>,
        strings: &Range<usize>,
    ) -> Result<(), CodeObjectError> {
        self.symbols.clear();
        for at in read.entries(table.start as u64, 24, table.len() as u64 / 24)? {
            let info = read.array::<1>(at + 4)?[0];
            self.symbols.push(Symbol {
                name: read.string(strings, read.u32(at)?)?,
                address: read.u64(at + 8)?,
                size: read.u64(at + 16)?,
                kind: info & 0xf,
                is_defined: read.u16(at + 6)? != 0,
            });
        }
        Ok(())
    }

    fn read_relocations(&mut self, read: Reader<'a>, table: &Range<usize>) -> Result<(), CodeObjectError> {
        for at in read.entries(table.start as u64, 24, table.len() as u64 / 24)? {
            self.relocations.push(Relocation {
                address: read.u64(at)?,
                kind: read.u32(at + 8)?,
                symbol: usize::try_from(read.u32(at + 12)?).unwrap_or(usize::MAX),
                addend: i64::from_le_bytes(read.array(at + 16)?),
            });
        }
        Ok(())
    }

    /// Objects that lie within the image.
    fn objects(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| {
            let end = symbol.address.checked_add(symbol.size);
            symbol.is_defined && symbol.kind == STT_OBJECT && end.is_some_and(|end| end <= self.image_size)
        })
    }

    /// The kernels and the addresses of their descriptors relative to the start of the image.
    ///
    /// A kernel without a descriptor cannot be launched and is left out, as by AMD's loader.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = (&Kernel, u64)> {
        let descriptors: HashMap<&str, u64> = self
            .objects()
            .filter(|symbol| symbol.size >= DESCRIPTOR_SIZE)
            .map(|symbol| (symbol.name.as_str(), symbol.address))
            .collect();
        self.kernels
            .iter()
            .filter_map(move |kernel| Some((kernel, *descriptors.get(kernel.symbol.as_str())?)))
    }

    /// The device variables.
    pub(crate) fn variables(&self) -> impl Iterator<Item = Variable> + '_ {
        let is_kernel = |symbol: &&Symbol| symbol.name.strip_suffix(DESCRIPTOR_SUFFIX).is_some();
        self.objects().filter(move |symbol| !is_kernel(symbol)).map(|symbol| Variable {
            name: symbol.name.clone(),
            address: symbol.address,
            size: symbol.size,
        })
    }

    /// How much memory the loaded code object takes. Its start must be aligned to a page.
    pub(crate) fn image_size(&self) -> usize {
        // Bounded by `MAX_IMAGE_SIZE`.
        usize::try_from(self.image_size).unwrap_or(usize::MAX)
    }

    /// Lays the segments out in `image`, which the device sees at `base`, and applies the relocations.
    ///
    /// `external` returns the address of a symbol that the file does not define.
    pub(crate) fn write_image(
        &self,
        image: &mut [u8],
        base: u64,
        external: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<(), CodeObjectError> {
        if image.len() < self.image_size() {
            return Err(CodeObjectError::TooLarge);
        }
        image.fill(0);
        for segment in &self.segments {
            let start = usize::try_from(segment.address).map_err(|_| CodeObjectError::TooLarge)?;
            let to = image.get_mut(start..).and_then(|rest| rest.get_mut(..segment.file.len()));
            to.ok_or(CodeObjectError::TooLarge)?.copy_from_slice(&self.bytes[segment.file.clone()]);
        }
        self.relocations.iter().try_for_each(|relocation| self.relocate(relocation, image, base, external))
    }

    fn relocate(
        &self,
        relocation: &Relocation,
        image: &mut [u8],
        base: u64,
        external: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<(), CodeObjectError> {
        let symbol = || {
            let symbol = self.symbols.get(relocation.symbol).ok_or(CodeObjectError::Truncated)?;
            if symbol.is_defined {
                return Ok(base.wrapping_add(symbol.address));
            }
            external(&symbol.name).ok_or(CodeObjectError::UndefinedSymbol)
        };
        let value = match relocation.kind {
            relocation::NONE => return Ok(()),
            relocation::RELATIVE64 => base,
            relocation::ABS32_LO | relocation::ABS32_HI | relocation::ABS64 | relocation::ABS32 => symbol()?,
            other => return Err(CodeObjectError::Relocation(other)),
        };
        let value = value.wrapping_add_signed(relocation.addend).to_le_bytes();
        let bytes = match relocation.kind {
            relocation::ABS32_LO | relocation::ABS32 => &value[..4],
            relocation::ABS32_HI => &value[4..],
            _ => &value[..],
        };
        let start = usize::try_from(relocation.address).map_err(|_| CodeObjectError::Truncated)?;
        let to = image.get_mut(start..).and_then(|rest| rest.get_mut(..bytes.len()));
        to.ok_or(CodeObjectError::Truncated)?.copy_from_slice(bytes);
        Ok(())
    }
}
