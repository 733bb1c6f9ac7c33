//! The evaluation of the alerts by promtool, with a sample each minute.

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
        Series { name: name.to_owned(), values: format!("{value}x{MINUTES}") }
    }
}

pub(crate) fn rules() -> Value {
    let file = deploy("components/prometheus-rule/prometheus-rule.yaml");
    let objects = parse(&fs::read_to_string(file).unwrap()).unwrap();
    objects.into_values().next().unwrap()["spec"].take()
}

/// Returns the series of a page of metrics that the alerts use. promtool begins at the time 0, so times are relative to
/// the scrape.
pub(crate) fn scraped(page: &str, labels: &str) -> Vec<Series> {
    let (rules, now) = (rules().to_string(), OffsetDateTime::now_utc().unix_timestamp());
    let mut series = Vec::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (metric, own_labels) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
        if !rules.contains(metric) {
            continue;
        }
        let value: f64 = value.parse().unwrap();
        let is_time = metric.ends_with("_timestamp_seconds") && value > 0.0;
        let value = if is_time { value - now as f64 } else { value };
        let separator = if own_labels.is_empty() { "" } else { "," };
        series.push(Series::constant(&format!("{metric}{{{own_labels}{separator}{labels}}}"), value));
    }
    assert!(!series.is_empty(), "{page}");
    series
}

pub(crate) fn kube_state(metric: &str, labels: &str, values: &str) -> Series {
    Series { name: format!("{metric}{{namespace=\"kube-system\",{labels}}}"), values: values.trim().to_owned() }
}

#[track_caller]
pub(crate) fn assert_firing(directory: &Path, series: &[Series], expected: &[&str]) {
    let input: Vec<Value> =
        series.iter().map(|series| json!({ "series": series.name, "values": series.values })).collect();
    let firing: Vec<Value> =
        expected.iter().map(|name| json!({ "labels": format!("{{alertname=\"{name}\"}}"), "value": 1 })).collect();
    let question = json!({
        "expr": "group by (alertname) (ALERTS{alertstate=\"firing\"})", "eval_time": format!("{MINUTES}m"),
        "exp_samples": firing,
    });
    let test = json!({ "interval": "1m", "input_series": input, "promql_expr_test": [question] });
    let test = json!({ "rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [test] });
    fs::write(directory.join("rules.json"), rules().to_string()).unwrap();
    let file = directory.join("test.json");
    fs::write(&file, test.to_string()).unwrap();
    let promtool = promtool().unwrap().display().to_string();
    let told = run(&promtool, &["test", "rules", &file.display().to_string()]);
    assert!(told.is_ok(), "{expected:?}: {told:?}");
}
