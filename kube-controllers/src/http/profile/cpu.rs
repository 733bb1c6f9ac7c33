//! Where processor time goes.

use std::time::{Duration, SystemTime};

use pprof::{ProfilerGuardBuilder, Report};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::ProfileError;
use super::format::{Builder, Frame};

/// Samples a second of processor time, as Go.
const FREQUENCY: i32 = 100;

/// The timer and the signal are the process'.
static SAMPLER: Mutex<()> = Mutex::const_new(());

/// Watches the process for as long.
pub(super) async fn profile(duration: Duration) -> Result<Vec<u8>, ProfileError> {
    let _only = SAMPLER.try_lock().map_err(|_| ProfileError::Busy)?;
    let begin = SystemTime::now();
    // Dropped with the request, too: then it stops.
    let guard = ProfilerGuardBuilder::default().frequency(FREQUENCY).build()?;
    sleep(duration).await;
    // Reads the symbols of the program.
    tokio::task::spawn_blocking(move || Ok(encode(&guard.report().build()?, begin, duration))).await?
}

fn encode(report: &Report, begin: SystemTime, duration: Duration) -> Vec<u8> {
    let period = 1_000_000_000 / i64::from(FREQUENCY);
    let mut builder = Builder::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    let since_epoch = begin.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    builder.timing(nanoseconds(since_epoch), nanoseconds(duration), period);
    for (stack, count) in &report.data {
        let inlined = stack.frames.iter().flatten().map(|symbol| Frame {
            function: symbol.name(),
            file: symbol.filename().into_owned(),
            line: symbol.lineno(),
        });
        let thread = Frame { function: format!("thread {}", stack.thread_name_or_id()), file: String::new(), line: 0 };
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        builder.sample(inlined.chain([thread]), vec![count, count.saturating_mul(period)]);
    }
    builder.encode()
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
