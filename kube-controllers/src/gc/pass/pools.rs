//! The room of IP pools: each replica counts it for its metrics, and the leader posts an Event when
//! the use of a pool crosses a threshold.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libcalico::ipam::gc::{Crossing, NamedRoom, Scope, Thresholds};
use libcalico::ipam::{IpamConfig, PoolRoom};
use libcalico::kubernetes::{ApiGroup, reverse_uid};
use os::clock::Clock;
use serde_json::{Value, json};

use super::GcPass;
use crate::events::{self, EventType, Posted};
use crate::gc::world::{ClusterApi, PassGate, World};
use crate::settings::Mode;

/// The shortest interval between two counts, which read all blocks.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which the allocator's settings are cached for the counts.
const CONFIG_IS_FRESH_FOR_COUNTS: Duration = Duration::from_secs(300);

/// The state of the counts.
#[derive(Default)]
pub(super) struct PoolRooms {
    /// The allocator's settings, once they are read.
    pub(super) config: Option<IpamConfig>,
    counted_at: Option<Duration>,
    /// True if the last count has not been compared with the thresholds.
    is_new: bool,
    thresholds: Thresholds,
    /// The crossings of the last count whose Events are not posted: each pool's UID or name, and
    /// the threshold.
    not_posted: BTreeSet<(String, u8)>,
}

/// A pool in service whose use has crossed a threshold.
struct NearlyFull {
    name: String,
    /// The pool's UID, or its name if the datastore has no UIDs.
    id: String,
    room: PoolRoom,
    crossing: Crossing,
}

impl PoolRooms {
    /// Returns the earliest time of the next count.
    pub(super) fn next_count(&self) -> Duration {
        self.counted_at
            .map_or(Duration::ZERO, |at| at.saturating_add(COUNT_INTERVAL))
    }
}

impl<W: World> GcPass<W> {
    /// Counts the room of all pools if something has changed and the interval is over, and in each
    /// full pass.
    pub(super) async fn count_rooms(&mut self, scope: Scope) {
        let now = self.now();
        let is_due =
            self.inputs.cache.index().has_changed_rooms() && now >= self.rooms.next_count();
        if !is_due && scope == Scope::Changed {
            return;
        }
        let has_pools = !self.inputs.cache.index().pools().is_empty();
        if has_pools {
            self.read_config(CONFIG_IS_FRESH_FOR_COUNTS).await;
        }
        let absent = IpamConfig::absent();
        self.inputs
            .cache
            .index()
            .count_rooms(self.rooms.config.as_ref().unwrap_or(&absent));
        self.rooms.counted_at = Some(now);
        self.rooms.is_new = true;
    }

    /// Removes the crossings that this replica has reported, because another replica reports the
    /// next ones.
    pub(super) fn reset_thresholds(&mut self) {
        self.rooms.thresholds = Thresholds::default();
        self.rooms.not_posted.clear();
    }

    /// Logs and posts the crossings of thresholds since the last count. If an Event cannot be
    /// posted, the next count finds the crossing again, unless the use has fallen meanwhile.
    pub(super) async fn report_nearly_full_pools(&mut self) {
        if !std::mem::take(&mut self.rooms.is_new) {
            return;
        }
        let logged = std::mem::take(&mut self.rooms.not_posted);
        for pool in self.nearly_full_pools() {
            let NearlyFull {
                name,
                id,
                room: PoolRoom { free, usable, .. },
                crossing,
            } = &pool;
            let found = (id.clone(), crossing.threshold);
            if !logged.contains(&found) {
                tracing::warn!(
                    pool = name,
                    threshold = crossing.threshold,
                    free,
                    usable,
                    hint = "create another pool, or see `calico-ipam usage`",
                    "the addresses of an IP pool are nearly all in use"
                );
            }
            if matches!(
                self.post_nearly_full(&pool).await,
                Posted::Failed | Posted::Refused { .. }
            ) {
                self.rooms.thresholds.undo(id, crossing);
                self.rooms.not_posted.insert(found);
            }
        }
    }

    fn nearly_full_pools(&mut self) -> Vec<NearlyFull> {
        let (now, thresholds) = (self.now(), &mut self.rooms.thresholds);
        let index = self.inputs.cache.index();
        let ids: BTreeSet<&str> = index.rooms().map(id_of).collect();
        thresholds.retain(|pool| ids.contains(pool));
        let crossed = index.rooms().filter_map(|named| {
            let (id, room) = (id_of(named).to_owned(), named.room.clone());
            let crossing = thresholds.cross(&id, room.used_share()?, now)?;
            Some(NearlyFull {
                name: named.name.to_owned(),
                id,
                room,
                crossing,
            })
        });
        crossed.collect()
    }

    /// Posts the Event about a crossing. The pool and the threshold determine its name, so that a
    /// replica that finds the pool above the threshold after a restart does not repeat it. A
    /// crossing that this replica has observed is a new one: if the Event of an earlier one still
    /// exists, the name depends on the time too.
    async fn post_nearly_full(&self, pool: &NearlyFull) -> Posted {
        let now = SystemTime::from(self.inputs.clock.now());
        let (event, threshold) = (
            nearly_full_event(pool, self.inputs.mode, now),
            pool.crossing.threshold.to_string(),
        );
        let (api, gate) = (&self.inputs.api, &self.inputs.gate);
        let once = events::named_by(event.clone(), &pool.id, &[threshold.as_str()]);
        let posted = api.post_event(gate.is_open(), once).await;
        if posted != Posted::Exists || pool.crossing.is_first() {
            return posted;
        }
        let at = now
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs()
            .to_string();
        let again = events::named_by(event, &pool.id, &[threshold.as_str(), at.as_str()]);
        api.post_event(gate.is_open(), again).await
    }
}

fn id_of(named: NamedRoom<'_>) -> &str {
    if named.uid.is_empty() {
        named.name
    } else {
        named.uid
    }
}

/// Returns the Event about a pool. Tenants of the namespace `default` can read it, so it names no
/// pod, node or namespace.
fn nearly_full_event(pool: &NearlyFull, mode: Mode, now: SystemTime) -> Value {
    let NearlyFull {
        name,
        id,
        room: PoolRoom { free, usable, .. },
        crossing,
    } = pool;
    let (group, uid) = match mode {
        // The store has the reversed uid (DS-60), and `kubectl describe` finds Events by the uid of
        // the object.
        Mode::Kubernetes(ApiGroup::CrdV1) => (
            ApiGroup::CrdV1,
            reverse_uid(id).unwrap_or_else(|| id.clone()),
        ),
        Mode::Kubernetes(ApiGroup::V3) | Mode::Etcd => (ApiGroup::V3, id.clone()),
    };
    let object =
        json!({ "apiVersion": group.api_version(), "kind": "IPPool", "name": name, "uid": uid });
    let percent = usable.saturating_sub(*free).saturating_mul(100) / (*usable).max(1);
    let message = format!(
        "{percent} % of the {usable} usable addresses of IP pool {name} are in use; {free} are \
         free; create another pool, or see `calico-ipam usage`"
    );
    let reason = format!("IPPoolUsage{}", crossing.threshold);
    events::event(&object, EventType::Warning, &reason, &message, now)
}
