//! [`ReleaseStep`]: the release of a container's addresses, in steps.
//!
//! Between two steps, the caller removes the addresses that the next step releases from the
//! endpoints. The parts of a release follow each other: the addresses of the pod's VMI, those under
//! the container's handle, and those under its handle from before v3.

use std::collections::VecDeque;

use libcalico::ipam::{Block, Handle, OldHandle, ReleaseRequest};
use libcalico::store::{Entry, Store};

use super::call::IpamRequest;
use allocation::alloc::comma_separated;
use allocation::error::{IpamError, Result};
use allocation::exhausted::ReleaseGuard;
use allocation::release::{
    AddressToRelease, HandleRead, HandleRelease, HandleWrite, ReadHandles, ReleaseInputs,
    ReleasedHandles, Unlisted, addresses_to_release, release_addresses, release_from_blocks,
};
use allocation::vmi::Ownership;
use os::clock::Clock;
use os::node_files::ReleaseLock;

/// The present state of a release.
#[derive(Debug)]
pub enum ReleaseStep<'a, S, C> {
    /// Addresses are leaving. The release continues as soon as no endpoint lists them.
    Unlist(Box<Leaving<'a, S, C>>),
    /// The release has ended.
    Done(ReleasedHandles),
}

impl<S: Store, C: Clock> ReleaseStep<'_, S, C> {
    /// Completes the release for a caller without endpoints, or whose endpoints are deleted
    /// already.
    pub async fn complete_without_endpoints(mut self) -> Result<ReleasedHandles> {
        loop {
            let leaving = match self {
                ReleaseStep::Done(released) => return Ok(released),
                ReleaseStep::Unlist(leaving) => leaving,
            };
            let unlisted = Unlisted::new(leaving.addresses());
            self = leaving.release(unlisted).await?;
        }
    }
}

/// The addresses that the next write of a release frees, as read.
#[derive(Debug)]
pub struct Leaving<'a, S, C> {
    release: Release<'a, S, C>,
    part: ReadPart<'a, C>,
}

impl<'a, S: Store, C: Clock> Leaving<'a, S, C> {
    /// Returns the addresses.
    pub fn addresses(&self) -> &[AddressToRelease] {
        match &self.part {
            ReadPart::Handles(read, _) => read.leaving(),
            ReadPart::OldHandle { leaving, .. } | ReadPart::Single { leaving, .. } => leaving,
        }
    }

    /// Releases the addresses, all of which are in `unlisted`, and reads until other addresses are
    /// leaving or the release has ended. After a lost race, the same addresses may be leaving once
    /// more.
    pub async fn release(self: Box<Self>, unlisted: Unlisted) -> Result<ReleaseStep<'a, S, C>> {
        let Leaving { mut release, part } = *self;
        release.write(part, &unlisted).await?;
        release.read_next().await
    }
}

/// A part of a release that has not read its blocks yet.
#[derive(Debug)]
pub(super) enum Part<'a, C> {
    /// The pod's ownership of the addresses that its VMI keeps.
    Ownership(Ownership<'a>),
    /// All addresses of handles.
    Handles(HandleRelease<'a, C>, HandlesOf<'a>),
    /// The container's own addresses under a handle that it may share with other workloads.
    OldHandle(OldHandle, Entry<Handle>),
    /// Addresses whose handle object is lost.
    Single(Vec<AddressToRelease>, Vec<ReleaseRequest>),
}

/// The owner of handles.
#[derive(Debug)]
pub(super) enum HandlesOf<'a> {
    Container,
    Vmi(Ownership<'a>),
}

/// A part of a release whose addresses are leaving.
#[derive(Debug)]
enum ReadPart<'a, C> {
    Handles(ReadHandles<'a, C>, HandlesOf<'a>),
    OldHandle {
        old: OldHandle,
        handle: Entry<Handle>,
        leaving: Vec<AddressToRelease>,
    },
    Single {
        leaving: Vec<AddressToRelease>,
        requests: Vec<ReleaseRequest>,
    },
}

/// A release between two parts.
#[derive(Debug)]
pub(super) struct Release<'a, S, C> {
    store: &'a S,
    clock: &'a C,
    parts: VecDeque<Part<'a, C>>,
    lock: ReleaseLock<'a>,
    released: ReleasedHandles,
    /// The DEL, which stores hints for later ADDs; `None` for another caller.
    call: Option<&'a IpamRequest>,
    _guard: Option<ReleaseGuard>,
}

impl<'a, S: Store, C: Clock> Release<'a, S, C> {
    /// Creates the release of these parts, in this order.
    pub(super) fn new(store: &'a S, clock: &'a C, parts: Vec<Part<'a, C>>) -> Self {
        Release {
            store,
            clock,
            parts: parts.into(),
            lock: ReleaseLock::default(),
            released: ReleasedHandles::default(),
            call: None,
            _guard: None,
        }
    }

    /// Makes this the release of a DEL, which takes the node's lock.
    pub(super) fn of_call(self, call: &'a IpamRequest) -> Self {
        Release {
            lock: ReleaseLock::new(&call.files, call.lock_file.as_deref()),
            call: Some(call),
            _guard: Some(call.begin_release()),
            ..self
        }
    }

    /// Reads until addresses are leaving, or the release has ended.
    pub(super) async fn read_next(mut self) -> Result<ReleaseStep<'a, S, C>> {
        while let Some(part) = self.parts.pop_front() {
            if let Some(part) = self.read(part).await? {
                let release = self;
                return Ok(ReleaseStep::Unlist(Box::new(Leaving { release, part })));
            }
        }
        self.end()
    }

    /// Reads the blocks of a part. Returns `None` if no address of the part is to be released.
    async fn read(&mut self, part: Part<'a, C>) -> Result<Option<ReadPart<'a, C>>> {
        let (store, clock) = (self.store, self.clock);
        Ok(match part {
            Part::Ownership(ownership) => {
                if let Some(inputs) = ownership.remove(store, clock).await? {
                    let release = HandleRelease::new(clock, inputs);
                    let of_vmi = Part::Handles(release, HandlesOf::Vmi(ownership));
                    self.parts.push_front(of_vmi);
                }
                None
            }
            Part::Handles(release, of) => match release.read(store).await? {
                HandleRead::Leaving(read) => Some(ReadPart::Handles(read, of)),
                HandleRead::Ended(released) => {
                    self.record(&of, released)?;
                    None
                }
            },
            Part::OldHandle(old, handle) => {
                let requests = |block: &Block| old.requests(block);
                Some(ReadPart::OldHandle {
                    leaving: addresses_to_release(store, &handle.value, requests).await?,
                    old,
                    handle,
                })
            }
            Part::Single(leaving, requests) => Some(ReadPart::Single { leaving, requests }),
        })
    }

    /// Writes a part, of which it releases no addresses but those in `unlisted`.
    async fn write(&mut self, part: ReadPart<'a, C>, unlisted: &Unlisted) -> Result<()> {
        let (store, clock) = (self.store, self.clock);
        match part {
            ReadPart::Handles(read, of) => {
                let mut no_lock = ReleaseLock::default();
                let lock = match of {
                    HandlesOf::Container => &mut self.lock,
                    HandlesOf::Vmi(_) => &mut no_lock,
                };
                match read.write(store, clock, lock, unlisted).await? {
                    HandleWrite::Released(released) => self.record(&of, released)?,
                    HandleWrite::ReadAgain(release) => {
                        self.parts.push_front(Part::Handles(release, of));
                    }
                }
            }
            ReadPart::OldHandle { old, handle, .. } => {
                let requests = |block: &Block| {
                    let mut requests = old.requests(block);
                    requests.retain(|request| unlisted.contains(request.ip));
                    requests
                };
                let blocks = handle.value.block.keys().copied();
                let released = release_from_blocks(store, clock, blocks, requests).await?;
                let ips = released.into_addresses()?;
                self.released.addresses += ips.len();
                self.released.ips.extend(ips);
            }
            ReadPart::Single { mut requests, .. } => {
                requests.retain(|request| unlisted.contains(request.ip));
                release_addresses(store, clock, &requests).await?;
            }
        }
        Ok(())
    }

    fn record(&mut self, of: &HandlesOf<'a>, released: ReleasedHandles) -> Result<()> {
        match of {
            HandlesOf::Container => self.released = released,
            HandlesOf::Vmi(ownership) => ownership.end(&released)?,
        }
        Ok(())
    }

    /// Ends the release. A block that cannot be read causes an error.
    fn end(self) -> Result<ReleaseStep<'a, S, C>> {
        let released = self.released;
        if let Some(block) = released.unreadable.first() {
            return Err(IpamError::UnreadableBlock(*block));
        }
        if let Some(call) = self.call {
            if let Some(mut hints) = call.recent_blocks(self.lock.lock(), self.store) {
                hints.store_write(&call.network, released.last_write.as_ref());
            }
            let addresses = comma_separated(&released.ips);
            tracing::info!(
                addresses, count = released.addresses, handle = %call.container_handle(),
                "ended the release of the container's addresses"
            );
        }
        Ok(ReleaseStep::Done(released))
    }
}

/// Returns the parts that release the handles in `inputs` of a container that ran on `node`. Under
/// the handle from before v3, `old`, only the container's own addresses are released.
pub(super) fn handle_parts<'a, C: Clock>(
    clock: &'a C,
    mut inputs: ReleaseInputs,
    old: Option<OldHandle>,
    node: &str,
) -> Vec<Part<'a, C>> {
    let old = old.and_then(|old| Some((inputs.remove_handle(old.id())?, old)));
    let release = HandleRelease::new(clock, inputs.on_node(node));
    let mut parts = vec![Part::Handles(release, HandlesOf::Container)];
    parts.extend(old.map(|(handle, old)| Part::OldHandle(old, handle)));
    parts
}
