//! The lines that the plugin writes to the file of `CALICO_TIMINGS`: one JSON object for each call.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

/// Medians over the lines of many ADDs and DELs.
pub(crate) struct Timings {
    /// Median number of datastore requests of an ADD and of a DEL.
    pub(crate) requests: [u64; 2],
    /// Median microseconds of each stage of an ADD, in chronological order.
    pub(crate) stages: Vec<(String, u64)>,
}

impl Timings {
    pub(crate) fn parse(lines: &str) -> Result<Self> {
        let mut requests = [vec![], vec![]];
        let mut stages: Vec<(String, Vec<u64>)> = Vec::new();
        for line in lines.lines() {
            let call: Map<String, Value> =
                serde_json::from_str(line).with_context(|| line.to_owned())?;
            let is_add = call.get("command").is_some_and(|command| command == "ADD");
            requests[usize::from(!is_add)].extend(call.get("requests").and_then(Value::as_u64));
            if is_add {
                record(&mut stages, line, &call);
            }
        }
        ensure!(!stages.is_empty(), "the plugin wrote no timings");
        Ok(Self {
            requests: requests.map(median),
            stages: stages
                .into_iter()
                .map(|(name, all)| (name, median(all)))
                .collect(),
        })
    }
}

/// Adds the stages of one ADD, whose keys end in `_us`.
fn record(stages: &mut Vec<(String, Vec<u64>)>, line: &str, call: &Map<String, Value>) {
    let micros = |(key, value): (&String, &Value)| {
        Some((key.strip_suffix("_us")?.to_owned(), value.as_u64()?))
    };
    let mut found: Vec<_> = call.iter().filter_map(micros).collect();
    // A parsed object does not keep the order of its text.
    found.sort_by_key(|(name, _)| line.find(&format!("\"{name}_us\"")));
    for (name, micros) in found {
        match stages.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.push(micros),
            None => stages.push((name, vec![micros])),
        }
    }
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_keep_their_order_and_each_value_is_the_median() {
        let lines = r#"{"command":"ADD","parse_us":10,"ipam_us":500,"dataplane_us":900,"total_us":1500,"requests":23}
{"command":"DEL","parse_us":7,"total_us":100,"requests":3}
{"command":"ADD","parse_us":30,"ipam_us":400,"dataplane_us":700,"total_us":1200,"requests":5}
{"command":"ADD","parse_us":20,"ipam_us":600,"dataplane_us":800,"total_us":1300,"requests":5}"#;
        let timings = Timings::parse(lines).unwrap();
        assert_eq!(timings.requests, [5, 3]);
        let expected = [
            ("parse", 20),
            ("ipam", 500),
            ("dataplane", 800),
            ("total", 1300),
        ];
        assert_eq!(
            timings.stages,
            expected.map(|(name, micros)| (name.to_owned(), micros))
        );
    }
}
