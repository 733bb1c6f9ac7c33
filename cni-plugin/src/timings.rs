//! The durations of the stages of one call, for the debug log and for `CALICO_TIMINGS`.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Environment variable with the path of a file to which a call appends one JSON line.
pub const TIMINGS_VARIABLE: &str = "CALICO_TIMINGS";

/// The stages of one call, in the order in which they ended.
#[derive(Debug)]
pub struct Timings {
    started: Instant,
    last: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Timings {
    /// Starts the first stage.
    pub fn start() -> Self {
        let now = Instant::now();
        Timings {
            started: now,
            last: now,
            stages: Vec::with_capacity(8),
        }
    }

    /// Ends the current stage, which began when the previous one ended, and logs it.
    pub fn stage(&mut self, name: &'static str) {
        let now = Instant::now();
        let took = now - self.last;
        tracing::debug!(step = name, took_us = took.as_micros() as u64, "step ended");
        self.stages.push((name, took));
        self.last = now;
    }

    /// Returns one JSON object: the microseconds of each stage in order, the total, and `requests`,
    /// the number of requests to the datastore and to a separate API server.
    pub fn to_json(&self, command: &str, requests: u64) -> String {
        let mut line = format!("{{\"command\":\"{command}\"");
        for (name, took) in &self.stages {
            line.push_str(&format!(",\"{name}_us\":{}", took.as_micros()));
        }
        line.push_str(&format!(
            ",\"total_us\":{},\"requests\":{requests}}}",
            self.started.elapsed().as_micros()
        ));
        line
    }

    /// Logs the stages and appends them to the file that [`TIMINGS_VARIABLE`] names, if set.
    pub fn report(&self, command: &str, requests: u64) {
        let line = self.to_json(command, requests);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_print_as_a_single_json_line_in_order() {
        let mut timings = Timings::start();
        timings.stage("parse");
        timings.stage("ipam");
        let line = timings.to_json("ADD", 4);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["requests"], 4);
        assert!(value["total_us"].as_u64() >= value["parse_us"].as_u64());
        assert!(line.find("parse_us") < line.find("ipam_us") && !line.contains('\n'));
    }
}
