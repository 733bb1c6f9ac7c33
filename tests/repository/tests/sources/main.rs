//! Checks of the sources and documents themselves.

mod arrows;
mod calls;
mod documents;
mod facts;
mod fixtures;
mod log_texts;
mod page_limits;
mod page_references;
mod programs;
mod promises;
mod style;
mod workflows;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use repository::{PROGRAM_CRATES, workspace};

/// Returns true for files that cargo finds by itself: `src/lib.rs`, `src/bin/*.rs`, `tests/*.rs`, …
fn is_root(file: &Path) -> bool {
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name)
            .map(|name| name.to_string_lossy().into_owned())
    };
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

fn parents(file: &Path) -> Vec<PathBuf> {
    let folder = file.parent().unwrap_or(Path::new(""));
    // The parent of the module `a::b`, in `a/b.rs`, is `a.rs`.
    let mut parents = vec![
        folder.with_extension("rs"),
        folder.join("lib.rs"),
        folder.join("main.rs"),
    ];
    if folder.ends_with("tests") && is_package(folder.parent()) {
        let files = rust_files(folder).into_iter();
        parents.extend(files.filter(|file| file.parent() == Some(folder)));
    }
    parents
}

fn module_name(file: &Path) -> Result<String> {
    let stem = file.file_stem().context("a file without a name")?;
    Ok(stem.to_string_lossy().into_owned())
}

fn declares(line: &str, declaration: &str) -> bool {
    line.trim()
        .strip_suffix(declaration)
        .is_some_and(|before| before.is_empty() || before.starts_with("pub"))
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

pub(crate) fn all_files() -> Result<Vec<PathBuf>> {
    let workspace = workspace();
    Ok(PROGRAM_CRATES
        .iter()
        .chain(&["tests"])
        .flat_map(|name| rust_files(&workspace.join(name)))
        .collect())
}

#[test]
fn every_source_file_is_declared_by_a_module() -> Result<()> {
    for file in all_files()?.iter().filter(|file| !is_root(file)) {
        let declaration = format!("mod {};", module_name(file)?);
        let named = parents(file)
            .iter()
            .filter_map(|parent| fs::read_to_string(parent).ok())
            .any(|text| text.lines().any(|line| declares(line, &declaration)));
        ensure!(
            named,
            "{}: no module names this file, it is never compiled",
            file.display()
        );
    }
    Ok(())
}

pub(crate) struct Source {
    /// The path below the workspace.
    pub(crate) path: String,
    /// The text up to the module of tests.
    pub(crate) text: String,
}

/// Returns the sources of the programs, without tests.
pub(crate) fn program_sources() -> Result<Vec<Source>> {
    let workspace = workspace();
    let mut sources = Vec::new();
    for file in all_files()? {
        let path = file.strip_prefix(workspace)?.to_string_lossy().into_owned();
        let text = fs::read_to_string(&file)?;
        sources.push(Source { path, text });
    }
    let gated = test_modules(&sources);
    let is_test = |path: &str| {
        path.starts_with("tests/")
            || path.ends_with("tests.rs")
            || path.ends_with("testing.rs")
            || ["/tests/", "/benches/", "/testing/", "/fuzz/"]
                .iter()
                .any(|folder| path.contains(folder))
            || gated.iter().any(|module| {
                *path == format!("{module}.rs") || path.starts_with(&format!("{module}/"))
            })
    };
    sources.retain(|source| !is_test(&source.path));
    for source in &mut sources {
        if let Some(begin) = source.text.find("\n#[cfg(test)]\nmod tests {") {
            source.text.truncate(begin + 1);
        }
    }
    Ok(sources)
}

fn test_modules(sources: &[Source]) -> Vec<String> {
    let mut modules = Vec::new();
    for Source { path, text } in sources {
        let folder = match path.rsplit_once('/') {
            Some((folder, "lib.rs" | "main.rs")) => folder.to_owned(),
            _ => path.trim_end_matches(".rs").to_owned(),
        };
        let mut is_gated = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[cfg(test)]")
                || line.starts_with("#[cfg(all(test")
                || line.starts_with("#[cfg(any(test")
            {
                is_gated = true;
            } else if is_gated && !line.starts_with("#[") {
                let declared = line
                    .strip_suffix(';')
                    .and_then(|line| line.rsplit_once("mod "));
                modules.extend(declared.map(|(_, name)| format!("{folder}/{name}")));
                is_gated = false;
            }
        }
    }
    modules
}
