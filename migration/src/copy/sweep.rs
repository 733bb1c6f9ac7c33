//! [`sweep`]: the objects that only v3 has.

use futures::future::join_all;
use libcalico::migration::is_copy;
use serde_json::{Value, json};

use super::super::listing;
use super::super::requests::Problem;
use super::deletion::delete_orphan;
use super::one::Action;
use super::outcome::{Category, shown};
use super::walk::{KindWalk, PARALLEL};

const ONLY_IN_V3: &str = "only v3 has the object, and v3 must have the blocks and settings of v1; \
                          delete it from v3, unless pods use its addresses";

/// An object of v3 without a source.
struct Orphan {
    /// The metadata that its deletion needs.
    metadata: Value,
    is_copy: bool,
}

/// Deletes the copies whose sources are gone, unless the action only checks. Lists the other
/// objects without a source; those of address management are conflicts.
///
/// An object that was copied by an earlier attempt, and deleted from v1 since, would otherwise come
/// back.
///
/// # Errors
/// The same as those of [`delete_orphan`].
pub(super) async fn sweep(walk: &mut KindWalk<'_>) -> Result<(), Problem> {
    let (kind, requests) = (walk.kind, walk.requests);
    let sources = &walk.sources;
    let project = |object: &Value| {
        let text = |field: &str| {
            object["metadata"][field]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let has_source = sources.contains_key(&(text("namespace"), text("name")));
        (!has_source).then(|| Orphan {
            metadata: identity(&object["metadata"]),
            is_copy: is_copy(object),
        })
    };
    let (orphans, _) = listing::metadata(requests, &kind.v3, project).await?;
    let (copies, others): (Vec<Orphan>, Vec<Orphan>) =
        orphans.into_iter().partition(|orphan| orphan.is_copy);
    for other in others {
        let (namespace, name) = (
            other.metadata["namespace"].as_str(),
            other.metadata["name"].as_str(),
        );
        let object = shown(kind.v3.kind, namespace, name.unwrap_or_default());
        if kind.is_ipam {
            walk.add(Category::Conflict, object, ONLY_IN_V3);
        } else {
            walk.add(Category::OnlyInV3, object, "");
        }
    }
    let Action::Copy { .. } = walk.action else {
        return Ok(());
    };
    for some in copies.chunks(PARALLEL) {
        let deletions = some
            .iter()
            .map(|copy| delete_orphan(requests, kind.v3, &copy.metadata));
        for deleted in join_all(deletions).await {
            deleted?;
            walk.action.finished();
        }
    }
    Ok(())
}

/// Returns the fields of the metadata that a deletion needs. The rest may be long, and so may the
/// list of finalizers.
fn identity(metadata: &Value) -> Value {
    let finalizer: Vec<&Value> = metadata["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .take(1)
        .collect();
    json!({
        "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"], "finalizers": finalizer,
    })
}
