//! Checks the sources and documents: every file is compiled and not too long, and quoted tests and messages exist.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

const CRATES: [&str; 8] =
    ["netconf", "libcalico", "datastore", "ipam-plugin", "installer", "cni-plugin", "kube-controllers", "tests"];

/// Returns true for files that cargo finds by itself: `src/lib.rs`, `src/bin/*.rs`, `tests/*.rs`, …
fn is_root(file: &Path) -> bool {
    let name = |path: Option<&Path>| path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let folder = name(file.parent()).unwrap_or_default();
    let file_name = name(Some(file)).unwrap_or_default();
    match folder.as_str() {
        "src" => matches!(file_name.as_str(), "lib.rs" | "main.rs"),
        "bin" | "benches" | "examples" | "fuzz_targets" => true,
        "tests" => is_package(file.parent().and_then(Path::parent)),
        // `src/bin/bench/main.rs` is a program of several files.
        _ => matches!(file_name.as_str(), "build.rs" | "main.rs"),
    }
}

fn is_package(folder: Option<&Path>) -> bool {
    folder.is_some_and(|folder| folder.join("Cargo.toml").is_file())
}

/// Returns the files that may contain `mod name;` for this file.
fn parents(file: &Path) -> Vec<PathBuf> {
    let folder = file.parent().unwrap_or(Path::new(""));
    // The module `a::b` is `a/b.rs` or `a/b/mod.rs`; its parent `a` is `a.rs` or `a/mod.rs`.
    let home = if file.ends_with("mod.rs") { folder.parent().unwrap_or(Path::new("")) } else { folder };
    let mut parents = vec![home.with_extension("rs"), home.join("mod.rs"), home.join("lib.rs"), home.join("main.rs")];
    if home.ends_with("tests") && is_package(home.parent()) {
        parents.extend(rust_files(home).into_iter().filter(|file| file.parent() == Some(home)));
    }
    parents
}

fn module_name(file: &Path) -> Result<String> {
    let named = if file.ends_with("mod.rs") { file.parent() } else { Some(file) };
    let stem = named.and_then(Path::file_stem).context("a file without a name")?;
    Ok(stem.to_string_lossy().into_owned())
}

/// Returns true if the line is the declaration `mod name;`, with or without `pub` or `pub(…)`.
fn declares(line: &str, declaration: &str) -> bool {
    line.trim().strip_suffix(declaration).is_some_and(|before| before.is_empty() || before.starts_with("pub"))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn all_files() -> Result<Vec<PathBuf>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    Ok(CRATES.iter().flat_map(|name| rust_files(&workspace.join(name))).collect())
}

#[test]
fn every_source_file_is_named_by_a_module() -> Result<()> {
    for file in all_files()?.iter().filter(|file| !is_root(file)) {
        let declaration = format!("mod {};", module_name(file)?);
        let named = parents(file)
            .iter()
            .filter_map(|parent| fs::read_to_string(parent).ok())
            .any(|text| text.lines().any(|line| declares(line, &declaration)));
        ensure!(named, "{}: no module names this file, it is never compiled", file.display());
    }
    Ok(())
}

/// Returns the rows of all tables of a document with this heading.
fn rows(document: &str, heading: &str) -> Result<Vec<String>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let text = fs::read_to_string(workspace.join(document)).with_context(|| document.to_owned())?;
    ensure!(text.contains(heading), "{document} has no table {heading}");
    let tables = text.split(heading).skip(1);
    let rows = tables.flat_map(|table| table.lines().skip(2).take_while(|line| line.starts_with('|')));
    Ok(rows.map(str::to_owned).collect())
}

/// Checks the tables of docs/testing.md: the second column has files, the third tests.
#[test]
fn testing_page_names_files_and_tests_that_exist() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let rows = rows("docs/testing.md", "| behavior | files | tests |")?;
    ensure!(rows.len() > 60, "{} rows", rows.len());
    for row in rows {
        let cells: Vec<_> = row.split('|').collect();
        let [_, _, files, tests, _] = cells.as_slice() else { bail!("{} cells in {row}", cells.len()) };
        let mut text = String::new();
        for file in quoted(files) {
            text += &fs::read_to_string(workspace.join(file)).with_context(|| file.to_owned())?;
        }
        for test in quoted(tests) {
            ensure!(
                text.contains(&format!("fn {test}(")) || text.contains(&format!("{test}:")),
                "no test {test} in {files}"
            );
        }
    }
    Ok(())
}

/// Checks SECURITY.md's tables and the threat model: each claim names a test, or says that it has none.
#[test]
fn security_documents_name_tests_that_exist() -> Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let read = |file: &str| fs::read_to_string(workspace.join(file)).with_context(|| file.to_owned());
    let (security, threats) = (read("SECURITY.md")?, read("docs/threat-model.md")?);
    let rows = rows("SECURITY.md", "| result | shown by |")?;
    let claims: Vec<_> = rows.iter().filter_map(|row| row.rsplit('|').nth(1)).collect();
    ensure!(claims.len() > 15, "{} claims", claims.len());
    for claim in claims {
        ensure!(claim.contains("no test: ") || quoted(claim).any(is_test_name), "nothing shows the claim: {claim}");
    }
    let sources = all_files()?.iter().map(fs::read_to_string).collect::<Result<String, _>>()?;
    for test in [&security, &threats].into_iter().flat_map(|text| quoted(text)).filter(|name| is_test_name(name)) {
        ensure!(sources.contains(&format!("fn {test}(")) || sources.contains(&format!("{test}:")), "no test {test}");
    }
    Ok(())
}

/// Returns true for the name of a test: several lower-case words, in contrast to other quoted text.
fn is_test_name(quoted: &str) -> bool {
    quoted.matches('_').count() > 2 && quoted.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

/// Checks the first column of the table of messages in docs/troubleshooting.md: our programs contain each quoted
/// message, except the parts that `…` stands for, the system's messages, and other programs' messages.
#[test]
fn troubleshooting_page_quotes_messages_of_the_programs() -> Result<()> {
    let rows = rows("docs/troubleshooting.md", "| message | meaning | remedy |")?;
    ensure!(rows.len() > 15, "{} rows", rows.len());
    let mut programs = String::new();
    for file in all_files()?.iter().filter(|file| !file.components().any(|part| part.as_os_str() == "tests")) {
        programs += &joined(&fs::read_to_string(file)?);
    }
    for row in rows {
        let said = row.split('|').nth(1).unwrap_or_default();
        if said.contains("(of containerd)") {
            continue;
        }
        for message in quoted(said) {
            let parts = message.split('…').filter(|part| *part != ": No such file or directory");
            let missing: Vec<_> = parts.filter(|part| !programs.contains(part.trim())).collect();
            ensure!(missing.is_empty(), "no program says {missing:?} of `{message}`");
        }
    }
    Ok(())
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

#[test]
fn no_source_file_is_longer_than_500_lines() -> Result<()> {
    for file in all_files()? {
        let lines = fs::read_to_string(&file)?.lines().count();
        ensure!(lines <= 500, "{}: {lines} lines, split it by noun", file.display());
    }
    Ok(())
}
