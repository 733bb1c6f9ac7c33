//! Reports the durations of the stages of one call, in the debug log and for `CALICO_TIMINGS`.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use node_process::logging::stages::StageTimes;

/// Environment variable with the path of a file to which a call appends one JSON line.
pub const TIMINGS_VARIABLE: &str = "CALICO_TIMINGS";

/// The time at which a call began, and its stages.
#[derive(Debug)]
pub struct Timings {
    started: Instant,
    stages: StageTimes,
}

impl Timings {
    /// Returns the timings of a call that began at `started` and is decoded now.
    pub fn of_parsed_call(started: Instant, stages: StageTimes) -> Self {
        stages.record("parse", started.elapsed());
        Timings { started, stages }
    }

    /// Logs the stages and appends them to the file that [`TIMINGS_VARIABLE`] names, if set.
    /// `requests` is the number of requests to the datastore and to a separate API server.
    pub fn report(&self, command: &str, requests: u64) {
        let line = json_line(
            command,
            &self.stages.ended(),
            self.started.elapsed(),
            requests,
        );
        tracing::debug!(timings = %line, "the stages of the call ended");
        if let Some(path) = std::env::var_os(TIMINGS_VARIABLE) {
            let file = File::options().create(true).append(true).open(&path);
            let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
            if let Err(error) = written {
                tracing::warn!(
                    path = %path.to_string_lossy(), %error, "cannot append the timings of the call",
                );
            }
        }
    }
}

/// Returns one JSON object: the microseconds of each stage in order, the total, and `requests`.
fn json_line(
    command: &str,
    stages: &[(&'static str, Duration)],
    total: Duration,
    requests: u64,
) -> String {
    let mut line = format!("{{\"command\":\"{command}\"");
    for (name, took) in stages {
        line.push_str(&format!(",\"{name}_us\":{}", took.as_micros()));
    }
    let total = total.as_micros();
    line.push_str(&format!(",\"total_us\":{total},\"requests\":{requests}}}"));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_print_as_a_single_json_line_in_order() {
        let (short, long) = (Duration::from_micros(2), Duration::from_micros(3000));
        let line = json_line("ADD", &[("parse", short), ("ipam", long)], long, 4);
        assert_eq!(
            line,
            r#"{"command":"ADD","parse_us":2,"ipam_us":3000,"total_us":3000,"requests":4}"#
        );
    }
}
