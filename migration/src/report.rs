//! [`write()`]: the ConfigMap that lists the outcome of a trial.

use std::fmt::Write as _;

use libcalico::kubernetes::{Location, Resource};
use serde_json::{Map, Value, json};

use super::copy::{Category, KindCount, Named, Outcome};
use super::requests::{Created, Problem, Requests};

/// Name of the ConfigMap.
pub(super) const NAME: &str = "calico-migration-v1-to-v3";

/// ConfigMaps of Kubernetes.
pub(super) const CONFIG_MAPS: Resource = Resource {
    api_version: "v1",
    kind: "ConfigMap",
    plural: "configmaps",
    namespaced: true,
};
/// Greatest length of the text under a key, in bytes. The API server refuses a ConfigMap of more
/// than 1 MiB.
const LONGEST_TEXT: usize = 100 * 1024;
const SUMMARY: &str = "summary";
const NOT_COMPARED: &str = "not checked: objects cannot be copied, or projectcalico.org/v3 is \
                            served by an aggregated API server; the migration itself checks before \
                            it locks";

/// Writes the outcome into the ConfigMap in `namespace`. `is_compared` is false if v3 could not be
/// read.
///
/// # Errors
/// [`Problem::Refused`] also if the namespace is missing.
pub(super) async fn write(
    requests: &Requests,
    namespace: &str,
    outcome: &Outcome,
    is_compared: bool,
) -> Result<(), Problem> {
    let at = Location::namespaced(CONFIG_MAPS, namespace, NAME);
    let data = data(outcome, is_compared);
    if let Some(mut existing) = requests.get(&at).await? {
        if existing["data"] != data {
            existing["data"] = data;
            requests.replace(&at, &existing).await?;
        }
        return Ok(());
    }
    let metadata = json!({ "name": NAME, "namespace": namespace });
    let body =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
    match requests.create(&at, &body, false).await? {
        Created::New(_) => Ok(()),
        Created::Exists => Err(Problem::Lost),
        Created::Refused(text) => Err(Problem::Refused { code: 403, text }),
    }
}

fn data(outcome: &Outcome, is_compared: bool) -> Value {
    let mut data = Map::new();
    data.insert(SUMMARY.into(), summary(outcome, is_compared).into());
    for category in Category::ALL {
        let total = outcome.total(category);
        data.insert(
            key(category).into(),
            lines(outcome.list(category), total).into(),
        );
    }
    Value::Object(data)
}

fn key(category: Category) -> &'static str {
    match category {
        Category::Copied => "copied",
        Category::Skipped => "skipped",
        Category::Conflict => "conflict",
        Category::Refused => "refused",
        Category::OnlyInV3 => "only-in-v3",
        Category::LeftOut => "left-out-owners",
    }
}

/// Returns the numbers of objects, in all and of each kind that has objects.
fn summary(outcome: &Outcome, is_compared: bool) -> String {
    let mut text = String::new();
    for category in Category::ALL {
        // A `String` accepts each write.
        _ = writeln!(text, "{}: {}", key(category), outcome.total(category));
    }
    for count in &outcome.counts {
        let numbers = numbers_of(count);
        if !numbers.is_empty() {
            _ = writeln!(text, "{}: {numbers}", count.kind);
        }
    }
    if !is_compared {
        _ = writeln!(text, "{NOT_COMPARED}");
    }
    text
}

fn numbers_of(count: &KindCount) -> String {
    let present = Category::ALL
        .into_iter()
        .filter(|category| count.of(*category) > 0);
    present
        .map(|category| format!("{} {}", count.of(category), key(category)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns one line for each listed object, as many as fit, and then the number of the others.
fn lines(listed: &[Named], total: usize) -> String {
    let (mut text, mut shown) = (String::new(), 0);
    for Named { object, reason } in listed {
        let line = if reason.is_empty() {
            format!("{object}\n")
        } else {
            format!("{object}: {reason}\n")
        };
        if text.len() + line.len() > LONGEST_TEXT {
            break;
        }
        text += &line;
        shown += 1;
    }
    if shown < total {
        _ = writeln!(text, "… and {} more", total - shown);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(number: usize, reason: &str) -> Named {
        Named {
            object: format!("IPAMHandle/h{number}"),
            reason: reason.into(),
        }
    }

    fn outcome(refused: Vec<Named>, total: usize) -> Outcome {
        let numbers = [(Category::Copied, 7), (Category::Refused, total)].into();
        let count = KindCount {
            kind: "IPAMHandle",
            numbers,
            ..KindCount::default()
        };
        let empty = KindCount {
            kind: "Tier",
            ..KindCount::default()
        };
        Outcome {
            counts: vec![empty, count],
            lists: [(Category::Refused, refused)].into(),
        }
    }

    #[test]
    fn report_has_a_key_for_each_category_and_complete_numbers() {
        let data = data(&outcome(vec![named(1, "too long")], 3), true);
        let keys: Vec<&str> = data
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected = [
            "conflict",
            "copied",
            "left-out-owners",
            "only-in-v3",
            "refused",
            "skipped",
            "summary",
        ];
        assert_eq!(keys, expected);
        assert_eq!(data["refused"], "IPAMHandle/h1: too long\n… and 2 more\n");
        let summary = "copied: 7\nskipped: 0\nconflict: 0\nrefused: 3\nonly-in-v3: \
                       0\nleft-out-owners: 0\n\
                       IPAMHandle: 7 copied, 3 refused\n";
        assert_eq!(data["summary"], summary);
        assert_eq!(data["copied"], "… and 7 more\n");
        assert_eq!(data["conflict"], "");
    }

    #[test]
    fn report_without_comparison_says_so() {
        let compared = summary(&Outcome::default(), true);
        assert_eq!(
            summary(&Outcome::default(), false),
            format!("{compared}{NOT_COMPARED}\n")
        );
    }

    #[test]
    fn lists_have_100_kib_at_most() {
        let long: Vec<Named> = (0..200)
            .map(|number| named(number, &"ä".repeat(1000)))
            .collect();
        let text = lines(&long, 200);
        assert!(text.len() <= LONGEST_TEXT + 20, "{}", text.len());
        let shown = text.lines().count() - 1;
        assert!(
            shown > 40 && text.ends_with(&format!("… and {} more\n", 200 - shown)),
            "{shown}"
        );
    }
}
