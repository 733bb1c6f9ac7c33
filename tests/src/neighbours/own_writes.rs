//! [`OwnWrites`]: counts the writes of Calico's installer and agent to a file that neighbors write
//! as well.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use os::atomic_file::is_draft;

use super::running::read_events;

/// The writes to a file. Each is a rename of a draft, whose name no other program uses.
#[derive(Debug)]
pub struct OwnWrites {
    inotify: Inotify,
    name: String,
    count: usize,
}

impl OwnWrites {
    /// Starts to count the writes to `file`.
    pub fn watch(file: &Path) -> Result<OwnWrites> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(
            file.parent().context("a file has a directory")?,
            AddWatchFlags::IN_MOVE,
        )?;
        let name = file
            .file_name()
            .context("a file has a name")?
            .to_string_lossy()
            .into_owned();
        Ok(OwnWrites {
            inotify,
            name,
            count: 0,
        })
    }

    /// Returns the number of writes since the start.
    pub fn count(&mut self) -> Result<usize> {
        let events = read_events(&self.inotify)?;
        let is = |event: &InotifyEvent, mask: AddWatchFlags| event.mask.contains(mask);
        let of_draft = |event: &&InotifyEvent| {
            event
                .name
                .as_ref()
                .is_some_and(|name| is_draft(Path::new(name)))
        };
        let left = events
            .iter()
            .filter(|event| is(event, AddWatchFlags::IN_MOVED_FROM))
            .filter(of_draft);
        let drafts: BTreeSet<u32> = left.map(|event| event.cookie).collect();
        let arrived = events
            .iter()
            .filter(|event| is(event, AddWatchFlags::IN_MOVED_TO));
        let ours = arrived.filter(|event| {
            event
                .name
                .as_ref()
                .is_some_and(|name| name == self.name.as_str())
        });
        self.count += ours.filter(|event| drafts.contains(&event.cookie)).count();
        Ok(self.count)
    }
}
