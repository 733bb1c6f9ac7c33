//! Promises about security have numbers: a page of docs/security/ defines each promise once, and a
//! test cites it or the promise is a limit. No document names a test.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use regex::Regex;

use crate::facts::tracked_texts;

const SECURITY: &str = "SECURITY.md";
const PAGES: &str = "docs/security/";
/// The text of a promise that no test shows.
const LIMIT: &str = "No test: a limit.";
/// Fewest promises: below this number, a page was lost.
const FEWEST: usize = 100;

/// Returns the numbers that the first group of a pattern finds.
fn numbers(pattern: &Regex, text: &str) -> BTreeSet<u32> {
    let found = pattern.captures_iter(text);
    found.filter_map(|found| found[1].parse().ok()).collect()
}

/// Returns true if a function with these attributes runs as a test.
fn is_run(attributes: &str) -> bool {
    let is_test = ["#[test]", "#[tokio::test", "#[on("]
        .iter()
        .any(|attribute| attributes.contains(attribute));
    is_test && !attributes.contains("ignore")
}

/// Returns the number of promises, and the faults of pages and tests, which are paths and texts.
fn promises(texts: &[(String, String)]) -> Result<(usize, Vec<String>)> {
    let heading = Regex::new(r"^## SEC-(\d+): ")?;
    let number = Regex::new(r"\bSEC-(\d+)\b")?;
    let withdrawal = Regex::new(r"\bSEC-(\d+) is withdrawn: ")?;
    let function = Regex::new(r"(?m)^((?: *///.*\n)*)((?: *#\[.*\]\n)+) *(?:async )?fn (\w+)")?;
    let (mut defined, mut withdrawn) = (BTreeMap::new(), BTreeSet::new());
    let (mut shown, mut tests) = (BTreeSet::new(), BTreeSet::new());
    let mut faults = Vec::new();

    for (path, text) in texts {
        if path == SECURITY {
            withdrawn = numbers(&withdrawal, text);
        } else if path.starts_with(PAGES) {
            for section in text.split("\n#") {
                for one in numbers(&heading, section) {
                    if defined.insert(one, section).is_some() {
                        faults.push(format!("SEC-{one} is defined twice"));
                    }
                }
            }
        } else if path.ends_with(".rs") {
            for found in function.captures_iter(text).filter(|one| is_run(&one[2])) {
                shown.extend(numbers(&number, &found[1]));
                tests.insert(found[3].to_owned());
            }
        }
    }

    let last = defined.last_key_value().map_or(0, |(one, _)| *one);
    let all = (1..=last).filter(|one| defined.contains_key(one) == withdrawn.contains(one));
    faults.extend(all.map(|one| format!("SEC-{one} is neither defined nor withdrawn, or both")));
    let undecided = defined
        .iter()
        .filter(|(one, section)| shown.contains(one) == section.contains(LIMIT));
    faults.extend(
        undecided.map(|(one, _)| format!("SEC-{one} has neither a test nor is a limit, or both")),
    );
    for (path, text) in texts {
        for one in numbers(&number, text) {
            let is_withdrawn = path == SECURITY && withdrawn.contains(&one);
            if !defined.contains_key(&one) && !is_withdrawn {
                faults.push(format!("{path}: no page defines SEC-{one}"));
            }
        }
        if path.ends_with(".md") {
            let quoted = text.split('`').skip(1).step_by(2);
            let named = quoted.filter(|name| tests.contains(*name));
            faults.extend(named.map(|name| format!("{path} names the test {name}")));
        }
    }
    Ok((defined.len(), faults))
}

#[test]
fn each_promise_is_defined_once_and_shown_by_a_test_or_a_limit() -> Result<()> {
    let mut texts = tracked_texts()?;
    // This file has numbers of no promise.
    texts.retain(|(path, _)| !path.ends_with("sources/promises.rs"));
    let (number, faults) = promises(&texts)?;
    ensure!(faults.is_empty(), "{faults:#?}");
    ensure!(number >= FEWEST, "{number} promises");
    Ok(())
}

#[test]
fn breach_of_each_part_of_the_rule_is_a_fault() -> Result<()> {
    let good = [
        ("SECURITY.md", "SEC-2 is withdrawn: SEC-1 says the same."),
        (
            "docs/security/tenant.md",
            "# A tenant\n\n### SEC-1: One\n\nText.\n\n### SEC-3: Three\n\nNo test: a limit.\n",
        ),
        ("docs/threat-model.md", "SEC-1 and SEC-3."),
        (
            "tests/tests/one.rs",
            "/// Shows SEC-1.\n#[test]\nfn one() {}\n",
        ),
    ];
    let changed = |old: &str, new: &str| {
        let texts = good.map(|(path, text)| (path.to_owned(), text.replace(old, new)));
        promises(&texts)
    };
    assert_eq!(changed("", "")?, (2, Vec::new()));
    for (old, new, fault) in [
        ("### SEC-3", "### SEC-1", "SEC-1 is defined twice"),
        (" is withdrawn", "", "SEC-2 is neither defined"),
        ("### SEC-3", "### SEC-2", "SEC-2 is neither defined"),
        ("No test: a limit.", "Text.", "SEC-3 has neither"),
        ("#[test]", "#[test]\n#[ignore]", "SEC-1 has neither"),
        ("#[test]", "#[inline]", "SEC-1 has neither"),
        ("Text.", "No test: a limit.", "SEC-1 has neither"),
        ("Shows SEC-1", "Shows SEC-9", "no page defines SEC-9"),
        ("and SEC-3", "and SEC-2", "no page defines SEC-2"),
        ("Text.", "See `one`.", "tenant.md names the test one"),
        ("and SEC-3", "`one`", "threat-model.md names the test one"),
        ("says the same", "`one`", "SECURITY.md names the test one"),
    ] {
        let (_, faults) = changed(old, new)?;
        let is_found = faults.iter().any(|one| one.contains(fault));
        ensure!(is_found, "{old} to {new}: {faults:#?}");
    }
    Ok(())
}
