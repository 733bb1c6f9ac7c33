//! The dashboard in deploy/grafana uses only metrics and labels that exist, and uses all metrics
//! except those in [`LEFT_OUT`]. The page of the metrics names all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

const DASHBOARD: &str = include_str!("../../../deploy/grafana/kube-controllers.json");
const PAGE: &str = include_str!("../../../docs/metrics.md");

/// Words of PromQL, and labels that Prometheus adds.
const WORDS: [&str; 16] = [
    "sum",
    "by",
    "rate",
    "increase",
    "histogram_quantile",
    "time",
    "max",
    "min",
    "count",
    "topk",
    "le",
    "job",
    "instance",
    "h",
    "__rate_interval",
    "label_values",
];

/// Metrics that the dashboard does not need.
const LEFT_OUT: [&str; 6] = [
    "kube_controllers_missing_rights",
    "process_max_fds",
    "process_open_fds",
    "process_start_time_seconds",
    "process_threads",
    "process_virtual_memory_bytes",
];

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
            Value::String(text) if name == "expr" || name == "query" && text.contains('(') => {
                found.push(text.clone())
            }
            value => expressions(value, found),
        }),
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// Returns the sources of the program, without the files and folders whose names end with `tests`.
fn sources() -> Vec<String> {
    fn files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            let is_test = path
                .file_stem()
                .is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
            if is_test {
                continue;
            }
            if path.is_dir() {
                files(&path, found)
            } else {
                found.push(path)
            }
        }
    }
    let mut found = Vec::new();
    files(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    found
        .iter()
        .map(|file| fs::read_to_string(file).expect("a source file"))
        .collect()
}

fn literals(source: &str) -> BTreeSet<&str> {
    let name = |text: &&str| {
        text.chars()
            .all(|sign| sign.is_ascii_lowercase() || sign == '_')
            && !text.is_empty()
    };
    source.split('"').filter(name).collect()
}

/// Returns each metric named in a source file, with all strings of that file that could be labels.
fn metrics(sources: &[String]) -> BTreeMap<&str, BTreeSet<&str>> {
    const PREFIXES: [&str; 10] = [
        "controller_runtime_",
        "ipam_allocations_",
        "ipam_blocks",
        "ipam_ippool_",
        "kube_controllers_",
        "workqueue_",
        "leader_election_",
        "calico_migration_",
        "process_",
        "rest_client_",
    ];
    let mut metrics = BTreeMap::new();
    for source in sources {
        let literals = literals(source);
        for name in literals
            .iter()
            .filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        {
            metrics.insert(*name, literals.clone());
        }
    }
    metrics
}

fn identifiers(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    words.filter(|word| word.starts_with(|sign: char| sign.is_ascii_alphabetic() || sign == '_'))
}

fn family(word: &str) -> &str {
    ["_bucket", "_count", "_sum"]
        .iter()
        .find_map(|suffix| word.strip_suffix(suffix))
        .unwrap_or(word)
}

#[test]
fn dashboard_queries_use_existing_metrics_and_labels() {
    let sources = sources();
    let (metrics, mut found) = (metrics(&sources), Vec::new());
    expressions(&serde_json::from_str(DASHBOARD).expect("JSON"), &mut found);
    assert!(found.len() > 30, "{} queries", found.len());
    for expression in found {
        let (named, labels): (Vec<_>, Vec<_>) = identifiers(&expression)
            .filter(|word| !WORDS.contains(word))
            .partition(|word| metrics.contains_key(family(word)));
        assert!(!named.is_empty(), "no metric of ours in {expression}");
        for label in labels {
            let known = named
                .iter()
                .all(|word| metrics[family(word)].contains(label));
            assert!(
                known,
                "`{label}` in {expression} is neither a metric nor a label of {named:?}"
            );
        }
    }
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let (sources, mut found) = (sources(), Vec::new());
    expressions(&serde_json::from_str(DASHBOARD).expect("JSON"), &mut found);
    let shown: BTreeSet<_> = found
        .iter()
        .flat_map(|expression| identifiers(expression))
        .map(family)
        .collect();
    let metrics = metrics(&sources);
    assert!(metrics.len() > 35, "{metrics:?}");
    for name in metrics.keys() {
        assert_ne!(shown.contains(name), LEFT_OUT.contains(name), "{name}");
    }
}

/// The page has `process_*` for the metrics of any process.
#[test]
fn every_metric_is_on_the_page() {
    let sources = sources();
    let quoted = PAGE.split('`').skip(1).step_by(2);
    let named: BTreeSet<_> = quoted.filter_map(|said| said.split('{').next()).collect();
    let metrics = metrics(&sources);
    for name in metrics.keys().filter(|name| !name.starts_with("process_")) {
        assert!(named.contains(name), "docs/metrics.md lacks {name}");
    }
}
