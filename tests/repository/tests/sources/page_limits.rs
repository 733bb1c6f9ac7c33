//! The limits of documents in docs/style.md: the words of a cell, of a paragraph, of a page and of
//! all pages.

use anyhow::{Result, ensure};
use regex::{Captures, Regex};

use crate::facts::tracked_pages;

const MOST_WORDS_OF_A_CELL: usize = 30;
const MOST_WORDS_OF_A_PARAGRAPH: usize = 90;
const MOST_WORDS_OF_A_PAGE: usize = 3_500;
/// Most words of all pages together, without those of the folders below. The number may only fall.
const MOST_WORDS: usize = 50_000;
/// Most words of the pages with facts about upstream together. The number may only fall.
const MOST_WORDS_OF_COMPATIBILITY: usize = 25_300;
/// Pages with facts about upstream, of any length.
const COMPATIBILITY: &str = "docs/compatibility/";
/// Decision records, and the generated page of the chart.
const RECORDS_AND_CHART: [&str; 2] = ["docs/adr/", "deploy/helm/"];
/// Fewest pages: below this number, the search has lost some.
const FEWEST: usize = 60;

/// A page without its code blocks.
struct Page {
    /// The path below the workspace.
    path: String,
    /// The lines, with their numbers in the file.
    lines: Vec<(usize, String)>,
}

impl Page {
    fn new(path: &str, text: &str) -> Result<Page> {
        let fenced = Regex::new(r"(?sm)^```.*?^```")?;
        // The lines behind a block keep their numbers.
        let text = fenced.replace_all(text, |block: &Captures<'_>| {
            "\n".repeat(block[0].matches('\n').count())
        });
        let lines = (1..).zip(text.split('\n'));
        let lines = lines
            .filter(|(_, line)| !line.starts_with("    "))
            .map(|(number, line)| (number, line.to_owned()));
        Ok(Page {
            path: path.to_owned(),
            lines: lines.collect(),
        })
    }

    fn words(&self) -> usize {
        self.lines.iter().map(|(_, line)| words(line)).sum()
    }

    /// Returns line and words of each cell of a table.
    fn cells(&self) -> Vec<(usize, usize)> {
        let rows = self.lines.iter().filter(|(_, line)| line.starts_with('|'));
        rows.flat_map(|(number, row)| {
            // A bar behind a backslash is a part of its cell.
            let row = row.replace(r"\|", "/");
            let cells: Vec<usize> = row.split('|').map(words).collect();
            // The text before the first bar and that behind the last one are no cells.
            let inner = cells.len().saturating_sub(2);
            let inner = cells.into_iter().skip(1).take(inner);
            inner.map(|words| (*number, words)).collect::<Vec<_>>()
        })
        .collect()
    }

    /// Returns first line and words of each paragraph and of each item of a list.
    fn paragraphs(&self) -> Result<Vec<(usize, usize)>> {
        let item = Regex::new(r"^\s*(?:[-*]|\d+\.) ")?;
        let (mut found, mut is_within) = (Vec::<(usize, usize)>::new(), false);
        for (number, line) in &self.lines {
            if line.trim().is_empty() || line.starts_with(['|', '#']) {
                is_within = false;
            } else if let Some((_, sum)) = found
                .last_mut()
                .filter(|_| is_within && !item.is_match(line))
            {
                *sum += words(line);
            } else {
                found.push((*number, words(line)));
                is_within = true;
            }
        }
        Ok(found)
    }

    /// Returns the parts past their limits, and the page if it is too long.
    fn faults(&self) -> Result<Vec<String>> {
        let mut faults = past(&self.path, "cell", self.cells(), MOST_WORDS_OF_A_CELL);
        faults.extend(past(
            &self.path,
            "paragraph",
            self.paragraphs()?,
            MOST_WORDS_OF_A_PARAGRAPH,
        ));
        let words = self.words();
        if words > MOST_WORDS_OF_A_PAGE && !self.path.starts_with(COMPATIBILITY) {
            faults.push(format!(
                "{}: a page of {words} words, at most {MOST_WORDS_OF_A_PAGE}",
                self.path
            ));
        }
        Ok(faults)
    }
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// Returns the parts with more than `most` words. A part has a line and a number of words.
fn past(path: &str, what: &str, parts: Vec<(usize, usize)>, most: usize) -> Vec<String> {
    let long = parts.into_iter().filter(|(_, words)| *words > most);
    long.map(|(line, words)| format!("{path}:{line}: a {what} of {words} words, at most {most}"))
        .collect()
}

fn pages() -> Result<Vec<Page>> {
    let pages: Vec<Page> = tracked_pages()?
        .iter()
        .map(|(path, text)| Page::new(path, text))
        .collect::<Result<_>>()?;
    ensure!(pages.len() >= FEWEST, "{} pages", pages.len());
    Ok(pages)
}

#[test]
fn cells_paragraphs_and_pages_are_short() -> Result<()> {
    let mut faults = Vec::new();
    for page in pages()? {
        faults.extend(page.faults()?);
    }
    ensure!(
        faults.is_empty(),
        "{} places in documents are too long (docs/style.md):\n{}",
        faults.len(),
        faults.join("\n")
    );
    Ok(())
}

#[test]
fn pages_together_are_short() -> Result<()> {
    let (compatibility, others): (Vec<_>, Vec<_>) = pages()?
        .into_iter()
        .filter(|page| {
            !RECORDS_AND_CHART
                .iter()
                .any(|one| page.path.starts_with(one))
        })
        .partition(|page| page.path.starts_with(COMPATIBILITY));
    for (what, pages, most) in [
        (COMPATIBILITY, compatibility, MOST_WORDS_OF_COMPATIBILITY),
        ("all other pages", others, MOST_WORDS),
    ] {
        let mut pages: Vec<_> = pages
            .iter()
            .map(|page| (page.words(), &page.path))
            .collect();
        pages.sort_unstable();
        let sum: usize = pages.iter().map(|(words, _)| words).sum();
        let pages: Vec<_> = pages
            .iter()
            .rev()
            .map(|(words, path)| format!("{path}: {words}"))
            .collect();
        ensure!(
            sum <= most,
            "{what} have {sum} words together, at most {most}:\n{}",
            pages.join("\n")
        );
    }
    Ok(())
}

#[test]
fn part_past_its_limit_is_a_fault_with_its_line_and_words() -> Result<()> {
    let (thirty, ninety) = ("word ".repeat(30), "word ".repeat(90));
    for (text, faults) in [
        (format!("| a | {thirty}|\n"), vec![]),
        (
            format!("| a | {thirty}`a\\|b` |\n"),
            vec!["1: a cell of 31"],
        ),
        (format!("# {ninety}more\n\n{ninety}\n"), vec![]),
        (format!("\n{ninety}\nmore\n"), vec!["2: a paragraph of 91"]),
        (format!("{ninety}\n| a |\nmore\n"), vec![]),
        (format!("{ninety}\n1. item\n"), vec![]),
        (
            format!("- {ninety}\n  more\n"),
            vec!["1: a paragraph of 92"],
        ),
        (format!("    {ninety}more\n"), vec![]),
        (
            format!("```\n{ninety}more\n```\n* {ninety}\n"),
            vec!["4: a paragraph of 91"],
        ),
        (
            format!("{ninety}\n\n").repeat(39),
            vec!["docs/page.md: a page of 3510"],
        ),
    ] {
        let found = Page::new("docs/page.md", &text)?.faults()?;
        ensure!(found.len() == faults.len(), "{text}: {found:?}");
        for (found, fault) in found.iter().zip(faults) {
            ensure!(found.contains(fault), "{text}: {found}");
        }
    }
    let long = format!("{ninety}\n\n").repeat(39);
    let of_compatibility = Page::new("docs/compatibility/page.md", &long)?.faults()?;
    assert_eq!(of_compatibility, Vec::<String>::new());
    Ok(())
}
