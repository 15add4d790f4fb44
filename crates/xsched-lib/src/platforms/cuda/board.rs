//! Words that the device reads and writes in this process's memory: how far each stream has come, and whether it may go
//! on.
//!
//! ```text
//!   stream:  kernel kernel [write 7 to `reached`] [wait until `run` is 1] [write 7 to `passed`] kernel kernel ...
//!                                                       │
//!   a stop point, at which the queue stands while `run` is 0: nothing in the program blocks, and no kernel spins.
//!   Reached and not passed: there it stands.
//! ```
//!
//! The memory is shared, not private: a child of the program must not get copies of pages that the device writes to. Each
//! context has pages of its own, for with it ends what the device can reach.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::vendor;

/// A stream's words, on a line of their own.
#[repr(C, align(64))]
pub(crate) struct Words {
    /// The number of the last marker, cut to 32 bits.
    pub(crate) reached: AtomicU32,
    /// 1: go on.
    pub(crate) run: AtomicU32,
    /// The number of the last stop point that was left behind.
    pub(crate) passed: AtomicU32,
    /// Nobody reads it.
    written_for_nothing: AtomicU32,
}

/// Those of one page.
const CELLS: usize = 64;
const SIZE: usize = CELLS * size_of::<Words>();

/// One page. Never unmapped, for the device may still write to it.
struct Board {
    base: NonNull<Words>,
    /// Where the device finds it.
    device: u64,
    /// The address of its context.
    context: usize,
    /// It is of no use in a child.
    process: u32,
    /// Cells that nobody has.
    unused: Vec<usize>,
}

// SAFETY: what `base` points to is atomics, and is never unmapped.
unsafe impl Send for Board {}

/// The pages of all contexts that are there.
fn boards() -> MutexGuard<'static, Vec<Board>> {
    static BOARDS: Mutex<Vec<Board>> = Mutex::new(Vec::new());
    BOARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context is there no more.
pub(crate) fn forget(context: usize) {
    boards().retain(|board| board.context != context);
}

impl Board {
    /// For the context that is current, whose address is this.
    fn new(context: usize) -> Result<Self, String> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address the kernel chooses; nobody else knows of it.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, access, flags, -1, 0) };
        let base = (base != libc::MAP_FAILED).then(|| NonNull::new(base.cast::<Words>())).flatten();
        let base = base.ok_or("no memory to share with the device")?;
        let device = register(base)?;
        Ok(Self { base, device, context, process: std::process::id(), unused: (0..CELLS).rev().collect() })
    }

    fn take(&mut self) -> Option<Cell> {
        let index = self.unused.pop()?;
        // SAFETY: the index is below CELLS, so the cell lies in the mapping, which is never unmapped.
        let words = unsafe { self.base.add(index).as_ref() };
        words.reached.store(0, Ordering::SeqCst);
        words.passed.store(0, Ordering::SeqCst);
        words.run.store(1, Ordering::SeqCst);
        Some(Cell { words, device: self.device + (index * size_of::<Words>()) as u64 })
    }
}

/// One stream's place on the board.
pub(crate) struct Cell {
    words: &'static Words,
    /// Where the device finds it.
    device: u64,
}

impl Cell {
    /// A cell that the device can reach from the context that is current, whose address is this; or why there is none.
    pub(crate) fn take(context: usize) -> Result<Self, String> {
        let is_its = |board: &&mut Board| board.context == context && board.process == std::process::id();
        if let Some(cell) = boards().iter_mut().filter(is_its).find_map(Board::take) {
            return Ok(cell);
        }
        // Nobody is kept waiting while the driver is asked.
        let mut board = Board::new(context)?;
        let cell = board.take().ok_or("no memory to share with the device")?;
        boards().push(board);
        Ok(cell)
    }

    pub(crate) fn words(&self) -> &'static Words {
        self.words
    }

    /// Where the device writes how far it is.
    pub(crate) fn reached_at(&self) -> u64 {
        self.device + std::mem::offset_of!(Words, reached) as u64
    }

    /// Where the device reads whether to go on.
    pub(crate) fn run_at(&self) -> u64 {
        self.device + std::mem::offset_of!(Words, run) as u64
    }

    /// Where the device writes which stop point it has left behind.
    pub(crate) fn passed_at(&self) -> u64 {
        self.device + std::mem::offset_of!(Words, passed) as u64
    }

    /// Where the device may write anything.
    pub(crate) fn nothing_at(&self) -> u64 {
        self.device + std::mem::offset_of!(Words, written_for_nothing) as u64
    }

    /// Gives it to another stream. What is still to be written there would be taken for the other's: only for a cell
    /// that the device has done with.
    pub(crate) fn give_back(&self) {
        let address = std::ptr::from_ref(self.words).addr();
        // None if its context is there no more.
        let index =
            |board: &Board| address.checked_sub(board.base.addr().get()).filter(|offset| *offset < SIZE);
        for board in boards().iter_mut().filter(|board| board.process == std::process::id()) {
            if let Some(offset) = index(board) {
                board.unused.push(offset / size_of::<Words>());
            }
        }
    }
}

/// Lets the device at a page from the context that is current. Answers where it lies for the device. A page that is refused
/// is given back.
fn register(base: NonNull<Words>) -> Result<u64, String> {
    /// For all contexts, and mapped for the device.
    const PORTABLE_AND_MAPPED: u32 = 3;
    let functions = vendor::HOST_REGISTER.get().zip(vendor::HOST_DEVICE_POINTER.get());
    let (register, pointer) = functions.ok_or("the driver cannot map the program's memory")?;
    let base = base.as_ptr().cast();
    // SAFETY: the SIZE bytes at `base` are mapped, and stay so if the driver takes them.
    match unsafe { register(base, SIZE, PORTABLE_AND_MAPPED) } {
        vendor::SUCCESS => {}
        code => {
            // SAFETY: nobody else knows of it, and the driver does not want it.
            unsafe { libc::munmap(base, SIZE) };
            return Err(format!("the driver refuses to map the program's memory (error {code})"));
        }
    }
    let mut device = 0;
    // SAFETY: the place has room for an address.
    match unsafe { pointer(&raw mut device, base, 0) } {
        vendor::SUCCESS => Ok(device),
        code => Err(format!("the driver does not say where the program's memory is mapped (error {code})")),
    }
}
