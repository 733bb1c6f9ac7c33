//! Programs, alerts, manifests and scripts name pages and headings that exist.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use regex::Regex;

use crate::facts::{anchor, anchors, tracked_pages, tracked_texts};

/// A page by its path from the root of the repository. A README or another name alone can be
/// relative.
const PAGE: &str =
    r"\b(?:(?:docs|deploy|kube-controllers|tests)/[\w./-]*|SECURITY|CHANGELOG|CONTRIBUTING)\.md\b";
/// Fewest references in the repository: below this number, the search has lost some.
const FEWEST: usize = 100;
/// Length of the text behind a page in which its heading is looked for.
const MOST_LETTERS: usize = 80;

/// The pages of the repository, by path, each with the anchors of its headings.
type Pages = BTreeMap<String, Vec<String>>;

/// Returns a text in one line, without the marks of comments, and without backslashes, which break
/// and quote strings.
fn in_one_line(text: &str) -> Result<String> {
    let mark = Regex::new(r"(?m)^\s*(?://[/!]?|#+|\*) ")?;
    let text = text.replace('\\', " ");
    let text = mark.replace_all(&text, "");
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A heading that a text names with its page.
struct NamedHeading {
    text: String,
    /// False if the text can go on behind the heading.
    is_whole: bool,
}

impl NamedHeading {
    fn whole(text: &str) -> NamedHeading {
        NamedHeading {
            text: text.trim().to_owned(),
            is_whole: true,
        }
    }

    /// Returns the heading behind a page: an anchor, or a text behind a comma. Without quotes, the
    /// text begins with a capital letter.
    fn behind(text: &str) -> Option<NamedHeading> {
        if let Some(text) = text.strip_prefix('#') {
            let is_end = |letter: char| !letter.is_alphanumeric() && !matches!(letter, '-' | '_');
            return text.split(is_end).next().map(NamedHeading::whole);
        }
        let text = text.strip_prefix(", ")?;
        if let Some(text) = text.strip_prefix('"') {
            return text.split('"').next().map(NamedHeading::whole);
        }
        text.starts_with(char::is_uppercase).then(|| NamedHeading {
            text: text.chars().take(MOST_LETTERS).collect(),
            is_whole: false,
        })
    }

    fn is_among(&self, anchors: &[String]) -> bool {
        let named = anchor(&self.text);
        anchors
            .iter()
            .filter_map(|known| named.strip_prefix(known.as_str()))
            .any(|rest| rest.is_empty() || (!self.is_whole && rest.starts_with('-')))
    }
}

/// Returns the number of pages that a text names, and the pages and headings that do not exist.
fn references(text: &str, pages: &Pages) -> Result<(usize, Vec<String>)> {
    let page = Regex::new(PAGE)?;
    let quoted = Regex::new(r#"((?:"[^"]{1,80}"(?:,| and)? )+)in $"#)?;
    let text = in_one_line(text)?;
    let (mut number, mut missing) = (0, Vec::new());
    for found in page.find_iter(&text) {
        let path = found.as_str();
        number += 1;
        let Some(anchors) = pages.get(path) else {
            missing.push(path.to_owned());
            continue;
        };
        let mut headings = Vec::from_iter(NamedHeading::behind(&text[found.end()..]));
        if let Some(before) = quoted.captures(&text[..found.start()]) {
            let between_quotes = before[1].split('"').skip(1).step_by(2);
            headings.extend(between_quotes.map(NamedHeading::whole));
        }
        headings.retain(|heading| !heading.is_among(anchors));
        missing.extend(headings.iter().map(|one| format!("{path}, {}", one.text)));
    }
    Ok((number, missing))
}

fn pages() -> Result<Pages> {
    let pages = tracked_pages()?.into_iter();
    Ok(pages.map(|(path, text)| (path, anchors(&text))).collect())
}

#[test]
fn pages_and_headings_that_programs_alerts_and_scripts_name_exist() -> Result<()> {
    let mut texts = tracked_texts()?;
    // Another test follows the links of documents. The examples of two rules name pages that do not
    // exist.
    let is_apart = |path: &str| {
        [
            ".md",
            "sources/page_limits.rs",
            "sources/page_references.rs",
        ]
        .iter()
        .any(|end| path.ends_with(end))
    };
    texts.retain(|(path, text)| text.contains(".md") && !is_apart(path));
    let (pages, mut all, mut missing) = (pages()?, 0, Vec::new());
    for (path, text) in &texts {
        let (number, faults) = references(text, &pages)?;
        all += number;
        missing.extend(faults.iter().map(|fault| format!("{path}: {fault}")));
    }
    ensure!(
        missing.is_empty(),
        "these pages or headings do not exist:\n{}",
        missing.join("\n")
    );
    ensure!(all >= FEWEST, "only {all} references were found");
    Ok(())
}

#[test]
fn missing_page_or_heading_is_found_in_each_form() -> Result<()> {
    let headings = anchors("# Recovery\n\n## A busy API server\n");
    let pages = Pages::from([("docs/a.md".to_owned(), headings)]);
    for (text, missing) in [
        ("see docs/a.md, and docs/a.md.", vec![]),
        ("see ../docs/b.md", vec!["docs/b.md"]),
        ("`docs/a.md#recovery`", vec![]),
        ("\"docs/a.md#recover\"", vec!["docs/a.md, recover"]),
        ("(docs/a.md, A busy API server)", vec![]),
        ("docs/a.md, A busy \\\n     API server, says", vec![]),
        ("# docs/a.md, \"A busy\n# API server\".", vec![]),
        ("    /// docs/a.md, A busy\n    /// API server", vec![]),
        ("say(\"docs/a.md, \\\"Recovery\\\"\")", vec![]),
        ("docs/a.md, \"Recovery of\"", vec!["docs/a.md, Recovery of"]),
        ("docs/a.md#recovery-of", vec!["docs/a.md, recovery-of"]),
        ("\"A busy\" in docs/a.md", vec!["docs/a.md, A busy"]),
        ("docs/a.md, with a word", vec![]),
        (
            "(docs/a.md, A busy server)",
            vec!["docs/a.md, A busy server)"],
        ),
        ("\"Recovery\" in docs/a.md", vec![]),
        (
            "\"Recovery\" and \"Loss\" in docs/a.md",
            vec!["docs/a.md, Loss"],
        ),
        ("[\"README.md\", \"docs/a.md\", \"Loss\"]", vec![]),
    ] {
        let (number, found) = references(text, &pages)?;
        ensure!(number > 0 && found == missing, "{text}: {found:?}");
    }
    Ok(())
}
