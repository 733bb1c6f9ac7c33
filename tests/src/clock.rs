//! Sets the clock of one process while it runs. The machine has one clock for all processes, and a
//! time namespace shifts only the monotonic clocks, and only before a process starts. Therefore
//! this module changes the clock inside the process.
//!
//! Programs read the time through the vDSO, code that the kernel maps into their memory. This
//! module overwrites that code with a few instructions that call the kernel and add an offset. The
//! process then reads the time that it would read if somebody had set the clock.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

/// The vDSO function through which the process reads the time.
const FUNCTION: &[u8] = b"__vdso_clock_gettime\0";

/// Types of program headers, and tags of the dynamic section, in the ELF format.
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;

/// Offsets of the clocks of a process from those of the machine, in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ahead {
    /// Offset of the calendar (CLOCK_REALTIME).
    pub calendar: i32,
    /// Offset of the time since boot (CLOCK_BOOTTIME), as if the machine had slept.
    pub boot: i32,
    /// Offset of the clock of tokio's timers (CLOCK_MONOTONIC).
    pub timers: i32,
}

/// True if this module can set clocks on this machine: its instructions are those of x86-64 only.
pub const KNOWN: bool = cfg!(target_arch = "x86_64");

pub(crate) fn set(pid: u32, ahead: Ahead) -> Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps
        .lines()
        .find(|line| line.ends_with("[vdso]"))
        .context("the process has no vDSO")?;
    let (begin, end) = line
        .split_whitespace()
        .next()
        .and_then(|range| range.split_once('-'))
        .context("no range")?;
    let (begin, end) = (
        u64::from_str_radix(begin, 16)?,
        u64::from_str_radix(end, 16)?,
    );
    let memory = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))?;
    let mut image = vec![0; usize::try_from(end - begin)?];
    memory.read_exact_at(&mut image, begin)?;
    let at = Image(&image)
        .function()
        .context("the vDSO has no clock_gettime")?;
    memory
        .write_all_at(&code(ahead), begin + at)
        .context("the vDSO cannot be written")
}

/// Returns the instructions of `clock_gettime(clock in edi, result in rsi)`, which add the offsets.
fn code(ahead: Ahead) -> Vec<u8> {
    let mut code = vec![0xb8, 0xe4, 0, 0, 0]; // mov eax, 228
    code.extend([0x0f, 0x05]); // syscall
    for (clock, offset) in [(0, ahead.calendar), (1, ahead.timers), (7, ahead.boot)] {
        code.extend([0x83, 0xff, clock, 0x75, 0x07]); // cmp edi, clock; jne past the add
        code.extend([0x48, 0x81, 0x06]); // add qword [rsi], …
        code.extend(offset.to_le_bytes());
    }
    code.push(0xc3); // ret
    code
}

/// A 64-bit ELF file.
struct Image<'a>(&'a [u8]);

impl Image<'_> {
    fn number(&self, at: u64, bytes: usize) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let bytes = self.0.get(at..at + bytes)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }

    fn function(&self) -> Option<u64> {
        let (headers, count) = (self.number(32, 8)?, self.number(56, 2)?);
        let header = |kind| {
            (0..count)
                .map(|n| headers + 56 * n)
                .find(|&at| self.number(at, 4) == Some(kind))
        };
        let load = header(PT_LOAD)?;
        let base = self
            .number(load + 16, 8)?
            .checked_sub(self.number(load + 8, 8)?)?;
        let dynamic = self.number(header(PT_DYNAMIC)? + 8, 8)?;
        let tags = (0..)
            .map(|n| dynamic + 16 * n)
            .take_while(|&at| self.number(at, 8).is_some_and(|tag| tag != 0));
        let tag = |wanted| tags.clone().find(|&at| self.number(at, 8) == Some(wanted));
        let names = self.number(tag(DT_STRTAB)? + 8, 8)?.checked_sub(base)?;
        let symbols = self.number(tag(DT_SYMTAB)? + 8, 8)?.checked_sub(base)?;
        let is_wanted = |symbol: &u64| {
            let name = self
                .number(*symbol, 4)
                .and_then(|name| usize::try_from(names + name).ok());
            name.and_then(|name| self.0.get(name..name + FUNCTION.len())) == Some(FUNCTION)
        };
        let mut symbols = (0..)
            .map(|n| symbols + 24 * n)
            .take_while(|&at| at + 24 <= self.0.len() as u64);
        self.number(symbols.find(is_wanted)? + 8, 8)?
            .checked_sub(base)
    }
}
