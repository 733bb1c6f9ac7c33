//! Documents name suites, files and messages that exist.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use repository::{PROGRAM_CRATES, workspace};

use crate::facts::anchor;
use crate::{all_files, module_name, program_sources};

const TROUBLESHOOTING: &str = "docs/troubleshooting.md";
/// The folder of the pages about messages.
const MESSAGES: &str = "docs/troubleshooting";

/// Returns the rows of all tables of a document with this heading.
fn rows(document: &str, heading: &str) -> Result<Vec<String>> {
    let workspace = workspace();
    let text = fs::read_to_string(workspace.join(document)).with_context(|| document.to_owned())?;
    ensure!(text.contains(heading), "{document} has no table {heading}");
    let tables = text.split(heading).skip(1);
    let rows = tables.flat_map(|table| {
        table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'))
    });
    Ok(rows.map(str::to_owned).collect())
}

/// Returns the pages in a folder, each with its path below the workspace.
fn pages(folder: &str) -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(workspace().join(folder)).with_context(|| folder.to_owned())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path)?;
            pages.push((format!("{folder}/{}.md", module_name(&path)?), text));
        }
    }
    Ok(pages)
}

/// Returns the headings of messages, which are below those of the page and of its chapters.
fn message_headings(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix("### "))
}

/// Returns the suites: the modules of the programs in `tests/tests`.
fn suites() -> Result<BTreeSet<String>> {
    let mut suites = BTreeSet::new();
    for area in fs::read_dir(workspace().join("tests/tests"))? {
        for entry in fs::read_dir(area?.path())? {
            let path = entry?.path();
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            if is_source && !path.ends_with("main.rs") {
                suites.insert(module_name(&path)?);
            }
        }
    }
    Ok(suites)
}

/// The first column of the table has suites.
#[test]
fn testing_page_has_each_suite_once() -> Result<()> {
    let (suites, mut named) = (suites()?, BTreeSet::new());
    ensure!(suites.len() > 60, "{} suites", suites.len());
    for row in rows("docs/testing.md", "| suite | area |")? {
        for suite in quoted(row.split('|').nth(1).unwrap_or_default()) {
            ensure!(suites.contains(suite), "tests/tests has no suite {suite}");
            ensure!(named.insert(suite.to_owned()), "{suite} has two places");
        }
    }
    let missing: Vec<_> = suites.difference(&named).collect();
    ensure!(
        missing.is_empty(),
        "the table of docs/testing.md lacks {missing:?}"
    );
    Ok(())
}

/// Checks the quoted messages, except the parts that `…` stands for, the system's messages, and
/// other programs' messages.
#[test]
fn troubleshooting_pages_quote_messages_of_the_programs() -> Result<()> {
    let pages = pages(MESSAGES)?;
    let headings: Vec<&str> = pages
        .iter()
        .flat_map(|(_, text)| message_headings(text))
        .collect();
    for heading in &headings {
        ensure!(
            quoted(heading).count() < 2,
            "two messages share a heading: {heading}"
        );
    }
    let quoting = headings
        .iter()
        .filter(|heading| quoted(heading).count() == 1)
        .count();
    ensure!(quoting > 100, "{quoting} headings quote a message");
    let mut log_lines = rows(TROUBLESHOOTING, "| line | call | meaning |")?;
    log_lines.extend(rows(TROUBLESHOOTING, "| line | fields |")?);
    ensure!(log_lines.len() > 10, "{} log lines", log_lines.len());
    let log_lines = log_lines.iter().filter_map(|row| row.split('|').nth(1));
    let mut programs = String::new();
    for file in all_files()?
        .iter()
        .filter(|file| !file.components().any(|part| part.as_os_str() == "tests"))
    {
        programs += &joined(&fs::read_to_string(file)?);
    }
    for said in headings.iter().copied().chain(log_lines) {
        if said.contains("(of containerd)") {
            continue;
        }
        for message in quoted(said) {
            let parts = message
                .split('…')
                .filter(|part| *part != ": No such file or directory");
            let missing: Vec<_> = parts
                // `Failure` writes the colon before a cause.
                .filter(|part| !programs.contains(part.trim_matches([' ', ':'])))
                .collect();
            ensure!(
                missing.is_empty(),
                "no program says {missing:?} of `{message}`"
            );
        }
    }
    Ok(())
}

/// A reader with a message looks for its place on the first page.
#[test]
fn troubleshooting_page_links_to_each_chapter_of_messages() -> Result<()> {
    let table = rows(TROUBLESHOOTING, "| place | messages |")?.concat();
    for (page, text) in pages(MESSAGES)? {
        let page = page.trim_start_matches("docs/");
        for heading in text.lines().filter_map(|line| line.strip_prefix("## ")) {
            let link = format!("]({page}#{})", anchor(heading));
            ensure!(
                table.contains(&link),
                "{TROUBLESHOOTING} has no link {link}"
            );
        }
    }
    Ok(())
}

/// Checks the quoted messages of a waiting migration, except the parts that a program fills in:
/// `…`, `N`, `X` and names of objects.
#[test]
fn moving_page_quotes_messages_of_the_programs() -> Result<()> {
    let rows = rows("docs/moving-to-v3.md", "| message | meaning | remedy |")?;
    ensure!(rows.len() > 15, "{} rows", rows.len());
    let programs = program_text()?;
    let filled_in =
        Regex::new(r"…|\bN objects\b|\bN\b|\bX\b|\bcalico-cni\b|\bv3\.projectcalico\.org\b")?;
    for row in rows {
        for message in quoted(row.split('|').nth(1).unwrap_or_default()) {
            let parts = filled_in
                .split(message)
                .map(|part| part.trim_matches([' ', ':']));
            let missing: Vec<_> = parts.filter(|part| !programs.contains(*part)).collect();
            ensure!(
                missing.is_empty(),
                "no program writes {missing:?} of `{message}`"
            );
        }
    }
    Ok(())
}

/// Checks the log lines and the reasons in the table of the page.
#[test]
fn garbage_collection_page_quotes_lines_and_reasons_of_the_programs() -> Result<()> {
    let rows = rows("docs/garbage-collection.md", "| line | `reason=` |")?;
    ensure!(rows.len() > 8, "{} rows", rows.len());
    let programs = program_text()?;
    for row in rows {
        let missing: Vec<_> = quoted(&row)
            .filter(|text| !programs.contains(*text))
            .collect();
        ensure!(missing.is_empty(), "no program writes {missing:?}");
    }
    Ok(())
}

/// Returns the sources of the programs as one text, with string literals in one line each.
fn program_text() -> Result<String> {
    let sources = program_sources()?;
    Ok(sources.iter().map(|source| joined(&source.text)).collect())
}

/// Joins the continuation lines of string literals.
fn joined(source: &str) -> String {
    let mut lines = source.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Checks each "`file`: `function`, `function`" of the pages.
#[test]
fn pages_name_functions_of_the_files_beside_them() -> Result<()> {
    let pages = pages("docs")?;
    let pair = Regex::new(r"`([\w/-]+\.rs)`: ((?:`[\w:]+`(?:, )?)+)")?;
    let name = Regex::new(r"(\w+)`")?;
    let mut checked = 0;
    for found in pages.iter().flat_map(|(_, page)| pair.captures_iter(page)) {
        let text =
            fs::read_to_string(workspace().join(&found[1])).with_context(|| found[1].to_owned())?;
        for function in name.captures_iter(&found[2]) {
            let is_there = Regex::new(&format!(r"\bfn {}\b", &function[1]))?.is_match(&text);
            ensure!(is_there, "{} has no function {}", &found[1], &function[1]);
            checked += 1;
        }
    }
    ensure!(checked > 40, "{checked} functions");
    Ok(())
}

#[test]
fn pages_name_files_and_folders_that_exist() -> Result<()> {
    let path = Regex::new(&format!(
        r"`((?:{}|tests)/[\w./-]+)`",
        PROGRAM_CRATES.join("|")
    ))?;
    let mut texts = [pages("docs")?, pages("docs/security")?, pages(MESSAGES)?].concat();
    for page in [
        "CONTRIBUTING.md",
        "README.md",
        "SECURITY.md",
        "tests/README.md",
    ] {
        let text = fs::read_to_string(workspace().join(page))?;
        texts.push((page.to_owned(), text));
    }
    let mut missing = Vec::new();
    for (page, text) in &texts {
        for found in path.captures_iter(text) {
            if !workspace().join(&found[1]).exists() {
                missing.push(format!("{page}: {}", &found[1]));
            }
        }
    }
    ensure!(missing.is_empty(), "{missing:#?}");
    Ok(())
}
