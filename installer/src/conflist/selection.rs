//! Warns if runtimes do not use the installed configuration, or extend it. Upstream does not check this (INST-32).

use std::path::Path;

use crate::runtime_choice::{candidates, is_read};

/// Logs a warning if runtimes choose another configuration, or may append plugins to this one.
pub fn warn_if_not_chosen(directory: &Path, name: &str, network: &str) {
    let read = candidates(directory).unwrap_or_default();
    if !is_read(name) {
        tracing::warn!("{name}: container runtimes read only files that end in .conf, .conflist or .json");
    } else if let Some(winner) = read.first().filter(|winner| *winner != name) {
        tracing::warn!(
            "container runtimes will use {}, not {name}: the first name wins; remove that file, or choose a CNI_CONF_NAME \
             that sorts before it",
            directory.join(winner).display()
        );
    }
    let added = directory.join(network);
    if !network.is_empty() && !candidates(&added).unwrap_or_default().is_empty() {
        tracing::warn!("container runtimes may add the plugins of {}/*.conf to {name}", added.display());
    }
}
