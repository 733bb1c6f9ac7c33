//! Facts about upstream that the code relies on are defined in docs/compatibility/, and each of
//! them is cited.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::{fs, str};

use anyhow::{Context, Result, ensure};
use regex::Regex;
use repository::workspace;

/// Fewest facts: below this number, a page was lost.
const FEWEST: usize = 200;

/// Returns the paths of the tracked files below the workspace.
fn tracked_paths() -> Result<Vec<String>> {
    let listed = Command::new("git")
        .current_dir(workspace())
        .args(["ls-files", "-z"])
        .output()?;
    ensure!(
        listed.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let paths = str::from_utf8(&listed.stdout)?.split('\0');
    Ok(paths
        .filter(|path| !path.is_empty())
        .map(String::from)
        .collect())
}

/// Returns the paths and texts of the tracked pages.
pub(crate) fn tracked_pages() -> Result<Vec<(String, String)>> {
    let paths = tracked_paths()?.into_iter();
    paths
        .filter(|path| path.ends_with(".md"))
        .map(|path| {
            let text = fs::read_to_string(workspace().join(&path)).with_context(|| path.clone())?;
            Ok((path, text))
        })
        .collect()
}

/// Returns the tracked text files except recordings and lock files, with their paths.
pub(crate) fn tracked_texts() -> Result<Vec<(String, String)>> {
    let is_recorded = |path: &str| {
        path.ends_with(".lock")
            || path.contains("/testdata/")
            || path.starts_with("tests/golden/")
            || path.ends_with(".snap")
    };
    let paths = tracked_paths()?.into_iter();
    let texts = paths.filter(|path| !is_recorded(path)).filter_map(|path| {
        let text = fs::read_to_string(workspace().join(&path)).ok()?;
        Some((path, text))
    });
    Ok(texts.collect())
}

#[test]
fn each_cited_fact_is_defined_and_each_defined_fact_is_cited() -> Result<()> {
    let number = Regex::new(r"\b(?:CNI|IPAM|DS|KC|INST|MIG|CTL|PG|MB|CB)-\d{1,3}\b")?;
    let heading = Regex::new(r"(?m)^### ((?:CNI|IPAM|DS|KC|INST|MIG|MB)-\d{1,3}): ")?;
    let (mut cited, mut defined) = (BTreeMap::<String, String>::new(), BTreeSet::new());
    for (path, text) in tracked_texts()? {
        if path.starts_with("docs/compatibility/") {
            for found in heading.captures_iter(&text) {
                ensure!(
                    defined.insert(found[1].to_owned()),
                    "{path}: {} is defined twice",
                    &found[1]
                );
            }
        } else {
            // This file has the pattern, and no fact.
            let found = number
                .find_iter(&text)
                .filter(|_| !path.ends_with("sources/facts.rs"));
            cited.extend(found.map(|found| (found.as_str().to_owned(), path.clone())));
        }
    }
    let undefined: Vec<_> = cited
        .iter()
        .filter(|(number, _)| !defined.contains(*number))
        .collect();
    ensure!(
        undefined.is_empty(),
        "docs/compatibility/ does not define: {undefined:?}"
    );
    let uncited: Vec<_> = defined
        .iter()
        .filter(|number| !cited.contains_key(*number))
        .collect();
    ensure!(uncited.is_empty(), "nothing cites: {uncited:?}");
    ensure!(defined.len() >= FEWEST, "{} facts", defined.len());
    Ok(())
}

/// A reader cannot look up such labels.
#[test]
fn no_source_cites_labels_of_external_papers() -> Result<()> {
    let label = Regex::new(r"\b[BDO]-\d{1,3}\b|\b[DW]\d{1,3}[ ,.;:)]|design decision \d+")?;
    for (path, text) in tracked_texts()? {
        let is_source = path.ends_with(".rs") || path.ends_with(".md") || path.ends_with(".sh");
        let found = label
            .find(&text)
            .filter(|_| is_source && !path.ends_with("sources/facts.rs"));
        ensure!(
            found.is_none(),
            "{path}: {:?}",
            found.map(|found| found.as_str())
        );
    }
    Ok(())
}

#[test]
fn relative_links_between_documents_exist() -> Result<()> {
    let workspace = workspace();
    let link = Regex::new(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")?;
    let anchors = |file: &Path| -> Result<Vec<String>> { Ok(anchors(&fs::read_to_string(file)?)) };
    for (path, text) in tracked_texts()?
        .iter()
        .filter(|(path, _)| path.ends_with(".md"))
    {
        let folder = workspace
            .join(path)
            .parent()
            .context("a file has a folder")?
            .to_owned();
        for found in link
            .captures_iter(text)
            .filter(|found| !found[1].contains("://") && !found[1].starts_with("mailto:"))
        {
            let target = match &found[1] {
                "" => workspace.join(path),
                relative => folder.join(relative),
            };
            ensure!(target.exists(), "{path}: {} does not exist", &found[1]);
            let anchor = found.get(2).map(|anchor| anchor.as_str());
            if let Some(anchor) = anchor.filter(|_| target.extension() == Some("md".as_ref())) {
                ensure!(
                    anchors(&target)?.iter().any(|known| known == anchor),
                    "{path}: {} has no heading #{anchor}",
                    target.display()
                );
            }
        }
    }
    Ok(())
}

/// Returns the anchor that GitHub gives to the first heading with this text.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter
            .is_alphanumeric()
            .then(|| letter.to_ascii_lowercase()),
    });
    kept.collect()
}

/// Returns the anchors that GitHub gives to the headings of a page.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut anchors = Vec::<String>::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) else {
            continue;
        };
        let anchor = anchor(heading.trim_start_matches('#').trim());
        let earlier = anchors.iter().filter(|known| **known == anchor).count();
        anchors.push(match earlier {
            0 => anchor,
            number => format!("{anchor}-{number}"),
        });
    }
    anchors
}

#[test]
fn heading_has_the_anchor_of_github() {
    let page = "# A `DEL` on etcd: why?\n```\n# no heading\n```\n## Two\n## Two\n";
    assert_eq!(anchors(page), ["a-del-on-etcd-why", "two", "two-1"]);
}
