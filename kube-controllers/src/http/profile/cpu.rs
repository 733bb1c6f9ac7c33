//! The profile of processor time.

use std::time::{Duration, SystemTime};

use pprof::{ProfilerGuardBuilder, UnresolvedReport};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::ProfileError;
use super::code;
use super::format::{Builder, Code, Frame};

/// Samples per second of processor time, as in Go.
const FREQUENCY: i32 = 100;

/// The innermost functions of each sample: the signal handler, and the C library's return from it.
const SAMPLING: &str = "perf_signal_handler|__restore(_rt)?";

/// Lock for the timer and the signal, of which the process has only one each.
static SAMPLER: Mutex<()> = Mutex::const_new(());

/// Samples the process for `duration`.
pub(super) async fn profile(duration: Duration) -> Result<Vec<u8>, ProfileError> {
    let _only = SAMPLER.try_lock().map_err(|_| ProfileError::Busy)?;
    let begin = SystemTime::now();
    // Dropping the request's future also drops the guard, which stops the sampling.
    let guard = ProfilerGuardBuilder::default().frequency(FREQUENCY).build()?;
    sleep(duration).await;
    // On a blocking thread, because the report sorts all samples.
    tokio::task::spawn_blocking(move || {
        let report = guard.report().build_unresolved()?;
        drop(guard);
        Ok(encode(&report, &code::mapped()?, begin, duration))
    })
    .await?
}

/// Encodes addresses only. Function names are in a separate debug file, which the reader of the profile provides.
fn encode(report: &UnresolvedReport, code: &[Code], begin: SystemTime, duration: Duration) -> Vec<u8> {
    let period = 1_000_000_000 / i64::from(FREQUENCY);
    let mut builder = Builder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let since_epoch = begin.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    builder.timing(nanoseconds(since_epoch), nanoseconds(duration), period);
    builder.without(SAMPLING);
    builder.code(code);
    for (stack, count) in &report.data {
        // A caller's frame has the return address, and the call is the instruction before it.
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
