//! The profile of processor time, and the files of this process's code with their addresses in
//! memory.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use findshlibs::{IterationControl, SharedLibrary, TargetSharedLibrary};
use pprof::{ProfilerGuardBuilder, UnresolvedReport};
use procfs::ProcError;
use procfs::process::{MMPermissions, MMapPath, Process};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::format::{Builder, Frame, MappedCode, ProfileError};

/// Samples per second of processor time, as in Go.
const FREQUENCY: i32 = 100;

/// The innermost functions of each sample: the signal handler, and the C library's return from it.
const SAMPLING: &str = "perf_signal_handler|__restore(_rt)?";

/// Lock for the timer and the signal, of which the process has only one each.
static SAMPLER: Mutex<()> = Mutex::const_new(());

/// Samples the process for `duration`, and returns the encoded profile. Fails at once while another
/// profile is being taken.
pub(in crate::http) async fn profile(duration: Duration) -> Result<Vec<u8>, ProfileError> {
    let _only = SAMPLER.try_lock().map_err(|_| ProfileError::Busy)?;
    let begin = SystemTime::now();
    // Dropping the request's future also drops the guard, which stops the sampling.
    let guard = ProfilerGuardBuilder::default()
        .frequency(FREQUENCY)
        .build()?;
    sleep(duration).await;
    // On a blocking thread, because the report sorts all samples.
    tokio::task::spawn_blocking(move || {
        let report = guard.report().build_unresolved()?;
        drop(guard);
        Ok(encode(&report, &mapped_code()?, begin, duration))
    })
    .await?
}

/// Encodes functions by their addresses. Their names are in a separate debug file, which the reader
/// of the profile provides.
fn encode(
    report: &UnresolvedReport,
    code: &[MappedCode],
    begin: SystemTime,
    duration: Duration,
) -> Vec<u8> {
    let period = 1_000_000_000 / i64::from(FREQUENCY);
    let mut builder = Builder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let since_epoch = begin
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    builder.timing(nanoseconds(since_epoch), nanoseconds(duration), period);
    builder.drop_functions(SAMPLING);
    builder.code(code);
    for (stack, count) in &report.data {
        // A caller's frame has the return address, and the call is the instruction before it.
        let called = stack
            .frames
            .iter()
            .map(|frame| Frame::Address((frame.ip() as u64).saturating_sub(1)));
        let name = String::from_utf8_lossy(&stack.thread_name[..stack.thread_name_length]);
        let name = if name.is_empty() {
            stack.thread_id.to_string().into()
        } else {
            name
        };
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        let value = vec![count, count.saturating_mul(period)];
        builder.sample(called.chain([Frame::Name(format!("thread {name}"))]), value);
    }
    builder.encode()
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Returns the mappings with code, that of the program itself first.
fn mapped_code() -> Result<Vec<MappedCode>, ProcError> {
    let process = Process::myself()?;
    let program = process.exe()?;
    let mut code = Vec::new();
    for map in process.maps()? {
        if let (MMapPath::Path(path), true) =
            (map.pathname, map.perms.contains(MMPermissions::EXECUTE))
        {
            let own = path == program;
            let build_id = if own { build_id() } else { String::new() };
            let (memory, offset, file) = (map.address, map.offset, path.display().to_string());
            code.insert(
                if own { 0 } else { code.len() },
                MappedCode {
                    memory,
                    offset,
                    file,
                    build_id,
                },
            );
        }
    }
    Ok(code)
}

/// Returns the build ID of the program in hexadecimal, or an empty string if the linker wrote none.
fn build_id() -> String {
    let mut id = String::new();
    TargetSharedLibrary::each(|library| {
        for byte in library.id().iter().flat_map(|id| id.as_bytes().to_vec()) {
            let _ = write!(id, "{byte:02x}");
        }
        // The program is the first library of the list.
        IterationControl::Break
    });
    id
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn program_is_the_first_mapping_and_has_its_build_id() {
        let code = mapped_code().expect("code");
        let here = program_is_the_first_mapping_and_has_its_build_id as fn() as usize as u64;
        let program = &code[0];
        assert!(
            (program.memory.0..program.memory.1).contains(&here),
            "{code:?}"
        );
        let file = std::env::current_exe()
            .expect("a program")
            .display()
            .to_string();
        assert_eq!(program.file, file);
        let notes = Command::new("readelf")
            .args(["--wide", "--notes", &file])
            .output()
            .expect("readelf");
        let notes = String::from_utf8(notes.stdout).expect("text");
        let build_id = notes
            .lines()
            .find_map(|line| line.split("Build ID: ").nth(1))
            .expect("a build id")
            .trim();
        assert_eq!(program.build_id, build_id);
    }
}
