//! Where processor time goes.

use std::time::{Duration, SystemTime};

use pprof::{ProfilerGuardBuilder, UnresolvedReport};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::ProfileError;
use super::code;
use super::format::{Builder, Code, Frame};

/// Samples a second of processor time, as Go.
const FREQUENCY: i32 = 100;

/// The sampler's own function, and the C library's that goes back from it: each sample begins with them.
const SAMPLING: &str = "perf_signal_handler|__restore(_rt)?";

/// The timer and the signal are the process'.
static SAMPLER: Mutex<()> = Mutex::const_new(());

/// Watches the process for as long.
pub(super) async fn profile(duration: Duration) -> Result<Vec<u8>, ProfileError> {
    let _only = SAMPLER.try_lock().map_err(|_| ProfileError::Busy)?;
    let begin = SystemTime::now();
    // Dropped with the request, too: then it stops.
    let guard = ProfilerGuardBuilder::default().frequency(FREQUENCY).build()?;
    sleep(duration).await;
    // As many samples as seconds can hold are sorted.
    tokio::task::spawn_blocking(move || {
        let report = guard.report().build_unresolved()?;
        drop(guard);
        Ok(encode(&report, &code::mapped()?, begin, duration))
    })
    .await?
}

/// Addresses only: names are in a file beside the program, for whoever reads the profile.
fn encode(report: &UnresolvedReport, code: &[Code], begin: SystemTime, duration: Duration) -> Vec<u8> {
    let period = 1_000_000_000 / i64::from(FREQUENCY);
    let mut builder = Builder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let since_epoch = begin.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    builder.timing(nanoseconds(since_epoch), nanoseconds(duration), period);
    builder.without(SAMPLING);
    builder.code(code);
    for (stack, count) in &report.data {
        // Callers are known by where they are returned to: the instruction before it is the call.
        let called = stack.frames.iter().map(|frame| Frame::Address((frame.ip() as u64).saturating_sub(1)));
        let name = String::from_utf8_lossy(&stack.thread_name[..stack.thread_name_length]);
        let name = if name.is_empty() { stack.thread_id.to_string().into() } else { name };
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        let value = vec![count, count.saturating_mul(period)];
        builder.sample(called.chain([Frame::Name(format!("thread {name}"))]), value);
    }
    builder.encode()
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
