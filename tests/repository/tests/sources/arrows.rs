//! Imports point in one direction: no two files import each other, directly or through others. An
//! arrow leads from a file to the file that defines what it names. Tests and arrows to an ancestor
//! module are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use anyhow::{Result, anyhow, ensure};
use regex::Regex;

use crate::{Source, program_sources};

/// A module: its crate's folder, and its path within the crate.
type Module = (String, Vec<String>);

/// The modules that each module imports from.
type Arrows = BTreeMap<Module, BTreeSet<Module>>;

struct Modules {
    texts: BTreeMap<Module, (String, String)>,
    /// Names that a module exports from others.
    exports: BTreeMap<Module, BTreeMap<String, Module>>,
}

/// Circles of top-level modules that docs/architecture.md explains.
const EXPLAINED: [&str; 1] = ["libcalico::ipam, libcalico::kubernetes, libcalico::store"];

/// Returns the modules of all programs, and the arrows between them, which all tests share: their
/// search takes seconds.
fn graph() -> Result<&'static (Modules, Arrows)> {
    static GRAPH: LazyLock<Result<(Modules, Arrows)>> = LazyLock::new(|| {
        let modules = Modules::read()?;
        let arrows = modules.arrows()?;
        Ok((modules, arrows))
    });
    GRAPH.as_ref().map_err(|error| anyhow!("{error:#}"))
}

impl Modules {
    fn read() -> Result<Modules> {
        let comment = Regex::new(r"//[^\n]*")?;
        let mut texts = BTreeMap::new();
        for Source { path, text } in program_sources()? {
            let Some((package, file)) = path
                .split_once("/src/")
                .filter(|(_, file)| !file.starts_with("bin/"))
            else {
                continue;
            };
            let mut names: Vec<String> = file
                .trim_end_matches(".rs")
                .split('/')
                .map(str::to_owned)
                .collect();
            if names == ["lib"] {
                names.clear();
            }
            texts.insert(
                (package.to_owned(), names),
                (path.clone(), comment.replace_all(&text, "").into_owned()),
            );
        }
        let mut modules = Modules {
            texts,
            exports: BTreeMap::new(),
        };
        let export = Regex::new(r"(?m)^\s*pub(?:\([a-z: ]+\))? use\s+([^;]+);")?;
        let mut exports = BTreeMap::<Module, BTreeMap<String, Module>>::new();
        for (module, (_, text)) in &modules.texts {
            for found in export.captures_iter(text) {
                for (path, alias) in spread(&found[1])
                    .iter()
                    .filter_map(|path| modules.absolute(module, path))
                {
                    let name = alias.or_else(|| path.last().cloned());
                    if let Some(name) = name {
                        exports
                            .entry(module.clone())
                            .or_default()
                            .insert(name, (module.0.clone(), path));
                    }
                }
            }
        }
        modules.exports = exports;
        Ok(modules)
    }

    /// Returns the path of an import within its crate, and its alias; `None` for another crate's.
    fn absolute(&self, here: &Module, path: &str) -> Option<(Vec<String>, Option<String>)> {
        let (path, alias) = match path.split_once(" as ") {
            Some((path, alias)) => (path, Some(alias.trim().to_owned())),
            None => (path, None),
        };
        let names: Vec<&str> = path.split("::").map(str::trim).collect();
        let (mut base, mut rest) = (here.1.clone(), &names[..]);
        match names.first().copied()? {
            "crate" => (base, rest) = (Vec::new(), &names[1..]),
            "self" => rest = &names[1..],
            "super" => {
                while rest.first() == Some(&"super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let child = [&here.1[..], &[first.to_owned()]].concat();
                if !self.texts.contains_key(&(here.0.clone(), child)) {
                    return None;
                }
            }
        }
        base.extend(rest.iter().map(|name| (*name).to_owned()));
        Some((base, alias))
    }

    /// Returns the module that defines a path, through re-exports.
    fn definition(&self, package: &str, path: &[String], depth: usize) -> Option<Module> {
        for length in (0..=path.len()).rev() {
            let module = (package.to_owned(), path[..length].to_vec());
            if !self.texts.contains_key(&module) {
                continue;
            }
            let exported = path
                .get(length)
                .and_then(|name| self.exports.get(&module)?.get(name));
            return match exported.filter(|_| depth < 8) {
                Some((package, to)) => {
                    self.definition(package, &[&to[..], &path[length + 1..]].concat(), depth + 1)
                }
                None => Some(module),
            };
        }
        None
    }

    fn arrows(&self) -> Result<Arrows> {
        let import = Regex::new(r"(?m)^\s*use\s+([^;]+);")?;
        let any_import = Regex::new(r"\buse\s+[^;]+;")?;
        let rooted = Regex::new(r"\b(?:crate|super|self)(?:::\w+)+")?;
        let relative = Regex::new(r"(^|[^:\w])(\w+(?:::\w+)+)")?;
        let mut arrows = Arrows::new();
        for (here, (_, text)) in &self.texts {
            let mut paths: Vec<String> = import
                .captures_iter(text)
                .flat_map(|found| spread(&found[1]))
                .collect();
            let body = any_import.replace_all(text, "");
            paths.extend(
                rooted
                    .find_iter(&body)
                    .map(|found| found.as_str().to_owned()),
            );
            paths.extend(
                relative
                    .captures_iter(&body)
                    .map(|found| found[2].to_owned()),
            );
            for path in paths {
                let Some((path, _)) = self.absolute(here, &path) else {
                    continue;
                };
                let Some(there) = self.definition(&here.0, &path, 0) else {
                    continue;
                };
                if there != *here && !here.1.starts_with(&there.1) {
                    arrows.entry(here.clone()).or_default().insert(there);
                }
            }
        }
        Ok(arrows)
    }
}

/// Returns the arrows of all crates, by the paths of the files.
pub(crate) fn file_arrows() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let (modules, arrows) = graph()?;
    let file = |module: &Module| modules.texts[module].0.clone();
    Ok(arrows
        .iter()
        .map(|(from, targets)| (file(from), targets.iter().map(file).collect()))
        .collect())
}

/// Returns the single paths of a `use` tree.
fn spread(path: &str) -> Vec<String> {
    let path = path.split_whitespace().collect::<Vec<_>>().join(" ");
    let (Some(open), Some(close)) = (path.find('{'), path.rfind('}')) else {
        return vec![path];
    };
    let (mut parts, mut depth, mut part) = (Vec::new(), 0, String::new());
    for letter in path[open + 1..close].chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        if letter == ',' && depth == 0 {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(letter);
        }
    }
    parts.push(part);
    let parts = parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty());
    parts
        .flat_map(|part| spread(&format!("{}{part}", &path[..open])))
        .collect()
}

/// Returns the sets of nodes that reach each other.
fn circles<N: Ord + Clone>(arrows: &BTreeMap<N, BTreeSet<N>>) -> Vec<BTreeSet<N>> {
    let reach = |from: &N| {
        let (mut found, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(node) = left.pop() {
            let next = arrows
                .get(&node)
                .into_iter()
                .flatten()
                .filter(|next| found.insert((*next).clone()));
            left.extend(next.cloned());
        }
        found
    };
    let reached: BTreeMap<&N, BTreeSet<N>> =
        arrows.keys().map(|node| (node, reach(node))).collect();
    let in_circle = reached
        .iter()
        .filter(|(node, reached)| reached.contains(*node));
    let circles: BTreeSet<BTreeSet<N>> = in_circle
        .map(|(node, nodes)| {
            let back = nodes.iter().filter(|other| {
                reached
                    .get(other)
                    .is_some_and(|reached| reached.contains(*node))
            });
            back.cloned().collect()
        })
        .collect();
    circles.into_iter().collect()
}

#[test]
fn no_two_files_import_each_other() -> Result<()> {
    let (modules, arrows) = graph()?;
    let circles = circles(arrows);
    let files = |circle: &BTreeSet<Module>| {
        circle
            .iter()
            .map(|module| modules.texts[module].0.clone())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let told: Vec<_> = circles.iter().map(files).collect();
    ensure!(
        told.is_empty(),
        "{} circles:\n{}",
        told.len(),
        told.join("\n")
    );
    Ok(())
}

#[test]
fn top_level_import_cycles_are_explained_in_the_architecture() -> Result<()> {
    let top = |(package, names): &Module| {
        format!("{package}::{}", names.first().map_or("lib", String::as_str))
    };
    let mut arrows = BTreeMap::<String, BTreeSet<String>>::new();
    for (from, targets) in &graph()?.1 {
        let from = top(from);
        for to in targets
            .iter()
            .map(top)
            .filter(|to| *to != from && !from.ends_with("::lib"))
        {
            arrows.entry(from.clone()).or_default().insert(to);
        }
    }
    let circles = circles(&arrows);
    let told: Vec<_> = circles
        .iter()
        .map(|circle| Vec::from_iter(circle.iter().cloned()).join(", "))
        .collect();
    let unexplained: Vec<_> = told
        .iter()
        .filter(|circle| !EXPLAINED.contains(&circle.as_str()))
        .collect();
    ensure!(
        unexplained.is_empty(),
        "{} circles: {unexplained:#?}",
        unexplained.len()
    );
    Ok(())
}
