//! The evaluation of the alerts by promtool, with a sample each minute.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use integration_tests::command::run;
use integration_tests::manifests::{deploy, parse, promtool};
use serde_json::{Value, json};
use time::OffsetDateTime;

/// Number of samples after the first one.
const MINUTES: usize = 120;

#[derive(Debug, Clone)]
pub(crate) struct Series {
    name: String,
    values: String,
}

impl Series {
    pub(crate) fn constant(name: &str, value: impl std::fmt::Display) -> Series {
        Series {
            name: name.to_owned(),
            values: format!("{value}x{MINUTES}"),
        }
    }
}

pub(crate) fn rules() -> Value {
    let file = deploy("components/prometheus-rule/prometheus-rule.yaml");
    let objects = parse(&fs::read_to_string(file).unwrap()).unwrap();
    objects.into_values().next().unwrap()["spec"].take()
}

/// Returns the names of all alerts.
pub(crate) fn alerts() -> BTreeSet<String> {
    let rules = rules();
    let rules = rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    rules
        .map(|rule| rule["alert"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the samples of a page of metrics that the alerts use. promtool begins at the time 0, so
/// times are relative to the present.
fn samples(page: &str, labels: &str) -> BTreeMap<String, f64> {
    let (rules, now) = (
        rules().to_string(),
        OffsetDateTime::now_utc().unix_timestamp(),
    );
    let mut samples = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (metric, own_labels) = name
            .trim_end_matches('}')
            .split_once('{')
            .unwrap_or((name, ""));
        if !rules.contains(metric) {
            continue;
        }
        let value: f64 = value.parse().unwrap();
        let is_time = metric.ends_with("_timestamp_seconds") && value > 0.0;
        let value = if is_time { value - now as f64 } else { value };
        let separator = if own_labels.is_empty() { "" } else { "," };
        samples.insert(
            format!("{metric}{{{own_labels}{separator}{labels}}}"),
            value,
        );
    }
    assert!(!samples.is_empty(), "{page}");
    samples
}

/// Returns the series of a page of metrics that does not change.
pub(crate) fn scraped(page: &str, labels: &str) -> Vec<Series> {
    samples(page, labels)
        .into_iter()
        .map(|(name, value)| Series::constant(&name, value))
        .collect()
}

/// Returns the series of a page of metrics that changes each minute as much as between two scrapes.
pub(crate) fn growing(before: &str, after: &str, labels: &str) -> Vec<Series> {
    let before = samples(before, labels);
    let series = |(name, value): (String, f64)| {
        let first = before.get(&name).copied().unwrap_or(value);
        Series {
            name,
            values: format!("{first}+{}x{MINUTES}", value - first),
        }
    };
    samples(after, labels).into_iter().map(series).collect()
}

pub(crate) fn kube_state(metric: &str, labels: &str, values: &str) -> Series {
    Series {
        name: format!("{metric}{{namespace=\"kube-system\",{labels}}}"),
        values: values.trim().to_owned(),
    }
}

/// Returns a test of promtool: after the last sample, exactly these alerts fire. Its failure names
/// the state.
pub(crate) fn firing(state: &str, series: &[Series], expected: &[&str]) -> Value {
    let input: Vec<Value> = series
        .iter()
        .map(|series| json!({ "series": series.name, "values": series.values }))
        .collect();
    let firing: Vec<Value> = expected
        .iter()
        .map(|name| json!({ "labels": format!("{{alertname=\"{name}\"}}"), "value": 1 }))
        .collect();
    let question = json!({
        "expr": format!("group by (alertname) (ALERTS{{alertstate=\"firing\"}}) # {state}"),
        "eval_time": format!("{MINUTES}m"), "exp_samples": firing,
    });
    json!({ "interval": "1m", "input_series": input, "promql_expr_test": [question] })
}

/// Runs tests of promtool. A single process runs them all, because its start takes longer than a
/// test.
#[track_caller]
pub(crate) fn assert_pass(directory: &Path, tests: &[Value]) {
    let tests =
        json!({ "rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": tests });
    fs::write(directory.join("rules.json"), rules().to_string()).unwrap();
    let file = directory.join("test.json");
    fs::write(&file, tests.to_string()).unwrap();
    let promtool = promtool().unwrap().display().to_string();
    let told = run(&promtool, &["test", "rules", &file.display().to_string()]);
    assert!(told.is_ok(), "{told:?}");
}
