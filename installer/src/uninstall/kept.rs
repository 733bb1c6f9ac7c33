//! What the plugins keep on the node by themselves.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::report::Report;
use crate::journal;
use crate::layout::{Layout, Place};
use crate::uninstall::{Task, Verdict};

/// Removes what nobody reads once the plugin is gone: which API group the cluster has, and a journal in which nothing is owed.
/// Goes by the plugin's program: where that stays, so does this.
pub(super) fn remove(tasks: &[Task], layout: &Layout, acts: bool, report: &mut Report) {
    let goes = |task: &Task| task.place != Place::Net && task.name == "calico" && task.verdict == Verdict::Remove;
    if !tasks.iter().any(goes) {
        return;
    }
    let group = Path::new(datastore::kubernetes::GROUP_FILE).file_name().unwrap_or_default();
    let group = layout.state_dir().join(group);
    if group.exists() {
        settle(&group, acts, |path| fs::remove_file(path), report);
    }
    let directory = journal::directory(layout);
    match journal::entries(layout) {
        Ok(None) => {}
        Err(error) => report.leave(directory.display(), format!("it cannot be looked at: {error}")),
        Ok(Some(0)) => settle(&directory, acts, remove_empty, report),
        Ok(Some(n)) => report.leave(
            directory.display(),
            format!(
                "{n} DELs could not give their addresses back yet; kube-controllers collects these, and then it can go"
            ),
        ),
    }
}

fn settle(path: &Path, acts: bool, remove: fn(&Path) -> std::io::Result<()>, report: &mut Report) {
    match if acts { remove(path) } else { Ok(()) } {
        Err(error) if error.kind() != ErrorKind::NotFound => report.fail("remove", path.display(), error),
        _ => report.done("remove", path.display()),
    }
}

/// A DEL that notes a debt in this moment keeps the directory.
fn remove_empty(journal: &Path) -> std::io::Result<()> {
    match fs::remove_file(journal.join("lock")) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir(journal),
    }
}
