//! The alerts use only metrics of the programs and a few others, with the labels of the metrics of
//! the programs.

use std::collections::BTreeSet;
use std::fs;

use integration_tests::manifests::{deploy, parse};
use regex::Regex;
use serde_json::Value;

/// Keywords and functions of PromQL, units of time, and labels that Prometheus adds.
const WORDS: [&str; 17] = [
    "sum",
    "max",
    "min",
    "by",
    "on",
    "rate",
    "increase",
    "delta",
    "time",
    "h",
    "m",
    "and",
    "or",
    "absent",
    "max_over_time",
    "job",
    "instance",
];

/// Metrics of Prometheus itself and of kube-state-metrics.
const OF_OTHERS: [&str; 4] = [
    "up",
    "kube_daemonset_status_number_unavailable",
    "kube_pod_init_container_status_restarts_total",
    "kube_pod_init_container_status_waiting_reason",
];

/// The page of the metrics of kube-controllers, and of all alerts.
const METRICS: &str = "docs/metrics.md";

fn rules() -> Vec<Value> {
    let file = deploy("components/prometheus-rule/prometheus-rule.yaml");
    let objects = parse(&fs::read_to_string(file).unwrap()).unwrap();
    let groups = objects
        .values()
        .flat_map(|object| object["spec"]["groups"].as_array().unwrap());
    groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

/// Returns the labels of a metric; `None` if there is no such metric.
fn labels_of(metric: &str) -> Option<String> {
    if OF_OTHERS.contains(&metric) {
        return Some(String::new());
    }
    let read = |path: &str| fs::read_to_string(deploy("..").join(path)).unwrap();
    if metric.starts_with("calico_cni_") {
        // The agent's metrics have no labels.
        return read("node-agent/src/status/metrics.rs")
            .contains(&format!("\"{metric}\""))
            .then(String::new);
    }
    let page = read(METRICS);
    let said = page
        .split('`')
        .find(|said| said.split('{').next() == Some(metric))?;
    Some(said[metric.len()..].to_owned())
}

#[test]
fn every_alert_uses_existing_metrics_and_labels() {
    let rules = rules();
    assert!(rules.len() > 4, "{} rules", rules.len());
    // Matchers of labels are left out; the suite deploy_alerts evaluates them.
    let matchers = Regex::new(r"\{[^}]*\}").unwrap();
    let groupings = Regex::new(r"by \(([a-z, ]+)\)").unwrap();
    for rule in rules {
        let expression = rule["expr"].as_str().unwrap();
        let expression = &*matchers.replace_all(expression, "");
        let words = expression.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
        let grouped: BTreeSet<&str> = groupings
            .captures_iter(expression)
            .flat_map(|by| by.get(1).unwrap().as_str().split(", "))
            .collect();
        let mut metrics = 0;
        let mut labels = String::new();
        for word in words.filter(|word| {
            word.starts_with(|sign: char| sign.is_ascii_lowercase()) && !WORDS.contains(word)
        }) {
            if grouped.contains(word) {
                continue;
            }
            let of_metric =
                labels_of(word).unwrap_or_else(|| panic!("no metric {word} in {expression}"));
            metrics += 1;
            labels += &of_metric;
        }
        assert!(metrics > 0, "{expression}");
        for label in grouped {
            assert!(
                labels.contains(label),
                "{label} is a label of none in {expression}: {labels}"
            );
        }
        for said in ["summary", "description"] {
            assert!(rule["annotations"][said].is_string(), "{expression}");
        }
    }
}

#[test]
fn metrics_page_names_every_alert() {
    let page = fs::read_to_string(deploy("..").join(METRICS)).unwrap();
    for rule in rules() {
        let name = rule["alert"].as_str().unwrap();
        assert!(
            page.contains(&format!("`{name}`")),
            "{METRICS} lacks {name}"
        );
    }
}
