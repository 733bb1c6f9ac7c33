//! Writes a configuration and keeps the entries that other programs added to the present one. A
//! file that is neither blank nor a JSON object is copied before the configuration replaces it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::configuration::Conflist;
use super::files::{FormerConfig, Target};
use super::included::replacement;
use super::{has_only_our_entries, is_read_by_runtimes};
use crate::layout::DirectoryRole;
use crate::plugin_chain::{Chain, Merged, Rendering, read_chain};
use crate::state::{InstalledFile, State};
use os::atomic_file::{self, AtomicFileError, Change, draft_name, regular_file};

/// The result of writing a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The change of the file: it was written, or it was up to date already.
    pub change: Change,
    /// The digests of our entries and of the foreign entries in the file, to be recorded.
    pub rendering: Rendering,
}

impl Conflist {
    /// Returns true if the file, also if Cilium renamed it, has the configuration's entries and
    /// grants at least the wanted mode.
    #[must_use]
    pub fn is_written(&self, target: &Target) -> bool {
        let read = || {
            atomic_file::read_complete(&target.path(), |present| target.is_complete(present))
                .ok()
                .flatten()
        };
        let present = target.renamed_by_cilium().or_else(read);
        present.is_some_and(|present| {
            let contents = Some(&present.contents[..]);
            present.grants(target.mode)
                && self
                    .text_to_write(&self.merged(contents, target, &[]), contents)
                    .is_none()
        })
    }

    /// Writes the configuration. Foreign entries stay in place, unless the present file is another
    /// network's, and foreign entries of the `former` configurations are added.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, or if another program rewrites it
    /// again and again.
    pub fn write(
        &self,
        target: &Target,
        former: &[FormerConfig],
    ) -> Result<Written, AtomicFileError> {
        let mut merged_config = self.rendered.without_foreign();
        let mut target = target.clone();
        let mut proposed = None;
        let mut copied = Ok(None);
        let path = target.path();
        let original_target = target.clone();
        let is_complete = |present: Option<&[u8]>| original_target.is_complete(present);
        let change = |present: Option<&[u8]>| {
            if present.is_some() && present == proposed.as_deref() {
                return None;
            }
            copied = Ok(None);
            let renamed = if present.is_none() {
                target.renamed_by_cilium()
            } else {
                None
            };
            let present = present.or(renamed.as_ref().map(|renamed| renamed.contents.as_slice()));
            merged_config = self.merged(present, &target, former);
            let text = self.text_to_write(&merged_config, present)?;
            if let Some((present, Err(reason))) =
                present.map(|present| (present, Chain::read(present)))
            {
                copied = back_up(&path, present).map(|copy| copy.map(|copy| (copy, reason)));
                copied.as_ref().ok()?;
            }
            // If another program writes the file at the same time, the next call of this closure
            // may read this text, unchanged or with that program's change.
            target
                .recorded
                .renderings
                .push(merged_config.rendering.clone());
            proposed = Some(text.clone());
            Some(text)
        };
        let replacement = replacement(&original_target.directory, &original_target.net_dir);
        let change = atomic_file::amend_by(
            replacement,
            &path,
            original_target.mode,
            is_complete,
            change,
        )?;
        let file = path.display();
        if let Some((copy, reason)) = copied? {
            let copy = copy.display();
            tracing::warn!(
                %file, %copy, %reason,
                hint = "add the plugins of other programs again, then remove the copy",
                "replaced the configuration without the plugins of other programs"
            );
        }
        if !merged_config.dropped.is_empty() {
            let dropped = merged_config.dropped.join(", ");
            tracing::warn!(
                %file, dropped,
                hint = "add them again if they were yours",
                "removed unrecorded plugins, which count as Calico's own"
            );
        }
        if !merged_config.foreign.is_empty() {
            tracing::info!(
                "{file}: keeping the plugins of other programs: {}",
                merged_config.foreign.join(", ")
            );
        }
        Ok(Written {
            change,
            rendering: merged_config.rendering,
        })
    }

    /// Records in the state that the configuration was written.
    pub fn record_written(&self, target: &Target, written: &Written, state: &mut State) {
        state.record(DirectoryRole::Net, &target.name, Some(self.digest()), false);
        if let Some(recorded) = state.get_mut(DirectoryRole::Net, &target.name) {
            recorded.origin = self.origin.clone();
            recorded.renderings = vec![written.rendering.clone()];
        }
    }

    /// Removes `former`, a configuration that this one replaces. Entries of other programs in
    /// `former` are added to the file of this one. On failure the old file is put back, if
    /// possible.
    pub fn remove_former(&self, former: &FormerConfig, target: &Target, state: &mut State) {
        // After the rename no other program adds entries to the file.
        let retired_path = draft_name(&former.path);
        let removed = fs::rename(&former.path, &retired_path)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                let dropped = FormerConfig {
                    path: retired_path.clone(),
                    ..former.clone()
                };
                let written = self
                    .write(target, &[dropped])
                    .map_err(|error| error.to_string());
                let removed = written.and_then(|written| {
                    fs::remove_file(&retired_path)
                        .map(|()| written)
                        .map_err(|error| error.to_string())
                });
                removed.inspect_err(|_| drop(fs::rename(&retired_path, &former.path)))
            });
        match removed {
            Ok(written) => {
                tracing::info!("removed {}", former.path.display());
                if let Some(recorded) = state.get_mut(DirectoryRole::Net, &target.name) {
                    recorded.renderings = vec![written.rendering];
                }
                state.remove_record(DirectoryRole::Net, &former.name);
            }
            Err(error) => {
                tracing::warn!(
                    path = %former.path.display(), error,
                    "cannot remove an old configuration; the next installation tries again"
                );
            }
        }
    }

    /// Returns the text of `merged` to write over `present`, or `None` if `present` is equivalent.
    fn text_to_write(&self, merged: &Merged, present: Option<&[u8]>) -> Option<Vec<u8>> {
        // The template may contain elements that are not plugins, so equal bytes are checked first.
        let is_same_text = merged.is_only_ours() && present == Some(self.text.as_bytes());
        if is_same_text
            || present
                .and_then(read_chain)
                .is_some_and(|chain| merged.chain.is_equivalent_to(&chain))
        {
            return None;
        }
        Some(if merged.is_only_ours() {
            self.text.as_bytes().to_vec()
        } else {
            merged.chain.to_text()
        })
    }

    pub(super) fn merged(
        &self,
        present: Option<&[u8]>,
        target: &Target,
        former: &[FormerConfig],
    ) -> Merged {
        let Some(present) = present.and_then(|text| self.foreign_chain(text, &target.recorded))
        else {
            // The present file is missing, not a JSON object, or has only our entries. Our entries
            // then take the places around the foreign entries of the first former configuration
            // that may have some.
            let mut former = former.iter();
            let first = former
                .by_ref()
                .find_map(|old| Some((self.foreign_chain(&old.text()?, &old.recorded)?, old)));
            let merged = first.map_or_else(
                || self.rendered.without_foreign(),
                |(present, former)| {
                    self.rendered
                        .merge_over(&present, &former.recorded.renderings)
                },
            );
            return self.with_former(merged, former.as_slice());
        };
        self.with_former(
            self.rendered
                .merge_over(&present, &target.recorded.renderings),
            former,
        )
    }

    fn with_former(&self, mut merged: Merged, former: &[FormerConfig]) -> Merged {
        for former in former {
            let present = former
                .text()
                .and_then(|text| self.foreign_chain(&text, &former.recorded));
            let foreign = present.map(|present| {
                present.foreign(&self.rendered.pattern, &former.recorded.renderings)
            });
            merged.add_entries(foreign.unwrap_or_default());
        }
        merged
    }

    /// Returns the plugins of a text that may contain foreign entries, or `None` for any other
    /// text.
    fn foreign_chain(&self, text: &[u8], recorded: &InstalledFile) -> Option<Chain> {
        read_chain(text).filter(|_| !has_only_our_entries(text, recorded))
    }
}

/// Maximum number of copies. A further copy overwrites the last one.
const MAX_COPIES: u32 = 9;

/// Copies the content `text` of a file that will be replaced, unless it is blank. Only root may
/// read the copy, because it may contain a token.
///
/// # Errors
/// Returns an error if the copy cannot be written. The file must not be replaced then.
fn back_up(path: &Path, text: &[u8]) -> Result<Option<PathBuf>, AtomicFileError> {
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    let copy = copy_path(path, text);
    atomic_file::replace(&copy, text, 0o600)?;
    Ok(Some(copy))
}

/// Returns the path of an existing copy with the same content, or else a path for a new copy.
fn copy_path(path: &Path, text: &[u8]) -> PathBuf {
    let is_usable = |copy: &PathBuf| match regular_file::contents(copy) {
        Ok(kept) => kept == text,
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    let mut copies = (1..MAX_COPIES).map(|number| numbered_copy(path, number));
    copies
        .find(is_usable)
        .unwrap_or_else(|| numbered_copy(path, MAX_COPIES))
}

/// Returns true if the file has the name of a copy that an installation made of a replaced
/// configuration.
pub fn is_backup(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let of = name
        .rsplit_once(".unreadable")
        .filter(|(_, number)| number.is_empty() || number.starts_with('.'));
    of.is_some_and(|(of, _)| is_read_by_runtimes(of))
}

/// Returns the path of the copy with this number, from 1.
fn numbered_copy(path: &Path, number: u32) -> PathBuf {
    let first = path.with_added_extension("unreadable");
    if number == 1 {
        first
    } else {
        first.with_added_extension(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn backup_beyond_the_maximum_overwrites_the_last_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-calico.conflist");
        for number in 0..20 {
            back_up(&path, number.to_string().as_bytes()).unwrap();
        }
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            MAX_COPIES as usize
        );
        assert!(
            fs::read_dir(dir.path())
                .unwrap()
                .all(|copy| is_backup(&copy.unwrap().path()))
        );
        assert!(
            ["10-calico.conflist", "x.unreadable", "a.conf.unreadables"]
                .into_iter()
                .all(|name| !is_backup(name.as_ref()))
        );
        assert_eq!(fs::read_to_string(numbered_copy(&path, 1)).unwrap(), "0");
        assert_eq!(
            fs::read_to_string(numbered_copy(&path, MAX_COPIES)).unwrap(),
            "19"
        );
        assert_eq!(
            fs::metadata(numbered_copy(&path, 1))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );
    }

    #[test]
    fn backup_names_of_0_1_0_are_recognized_and_given_today() {
        let stored = include_str!("../../../tests/formats/0.1.0/names/backups.txt");
        assert!(stored.lines().all(|name| is_backup(name.as_ref())));
        let names = [1, 2].map(|number| numbered_copy("10-calico.conflist".as_ref(), number));
        assert!(
            names
                .iter()
                .map(PathBuf::as_path)
                .eq(stored.lines().map(Path::new))
        );
    }
}
