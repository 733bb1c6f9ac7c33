//! The queries of a read batch: each distinct query is sent once, and its objects are decoded for
//! each of its ranges.

use std::time::Duration;

use libcalico::kubernetes::{ApiGroup, Codec, DecodedObject, Query, Resource};
use libcalico::store::{Freshness, Range, StoreError};
use serde_json::Value;

use super::client::ApiClient;
use super::discovery;
use super::error::{ApiStatusError, RequestError};
use super::pages;
use super::request::{ApiRequest, Cache};

/// Time limit for the API server's cache to reach a revision; after it, the read goes to the
/// server's own storage. The cache may be far behind, or the revision may be another cluster's.
const CACHE_TIME_LIMIT: Duration = Duration::from_secs(1);

/// A query, and the ranges of a batch that it serves.
pub(super) struct DistinctQuery<'q> {
    pub(super) query: &'q Query,
    freshness: Freshness,
    /// True if only the metadata of an object is needed.
    revision_only: bool,
    ranges: Vec<usize>,
}

pub(super) type DecodedRange = (usize, Vec<DecodedObject>);

impl<'q> DistinctQuery<'q> {
    /// Returns the distinct queries of a batch. `queries` has the query of each range. If ranges
    /// with the same query differ in freshness, the query reads the latest objects.
    pub(super) fn collect(ranges: &[Range], queries: &'q [Query]) -> Vec<DistinctQuery<'q>> {
        let mut distinct: Vec<DistinctQuery<'q>> = Vec::new();
        for (index, (range, query)) in ranges.iter().zip(queries).enumerate() {
            let revision_only = range.keys_only && !range.is_prefix;
            match distinct
                .iter_mut()
                .find(|other| other.query == query && other.revision_only == revision_only)
            {
                Some(other) => {
                    if other.freshness != range.freshness {
                        other.freshness = Freshness::Latest;
                    }
                    other.ranges.push(index);
                }
                None => {
                    let freshness = range.freshness.clone();
                    distinct.push(DistinctQuery {
                        query,
                        freshness,
                        revision_only,
                        ranges: vec![index],
                    });
                }
            }
        }
        distinct
    }

    pub(super) fn decode(
        &self,
        codec: &Codec,
        ranges: &[Range],
        objects: Vec<Value>,
    ) -> Vec<DecodedRange> {
        let decode = |index: usize, objects: Vec<Value>| {
            let decoded = objects
                .into_iter()
                .filter_map(|object| codec.decode(&ranges[index], object));
            (index, decoded.collect())
        };
        // Blocks and pods are large, so only objects shared with a later range are copied.
        let Some((last, others)) = self.ranges.split_last() else {
            return Vec::new();
        };
        let mut all: Vec<_> = others
            .iter()
            .map(|index| decode(*index, objects.clone()))
            .collect();
        all.push(decode(*last, objects));
        all
    }

    /// Returns the objects of the query, which are none if the requested object is missing. Returns
    /// `None` after a 404 that is not about the requested object. The API server's cache may serve
    /// reads that need not be the latest, to save the round trip to its storage.
    pub(super) async fn send(&self, client: &ApiClient) -> Result<Option<Vec<Value>>, StoreError> {
        let may_lag = self.freshness == Freshness::Cached;
        let (outcome, path) = match self.query {
            Query::Nothing => return Ok(Some(Vec::new())),
            Query::Get(location) => {
                let path = location.url_path();
                let outcome = self.get(client, &path).await.and_then(|object| {
                    if location.is_of(&object)
                        || self.revision_only && location.is_metadata_of(&object)
                    {
                        return Ok(vec![object]);
                    }
                    Err(RequestError::Unreadable(
                        "the answer is not the requested object".into(),
                    ))
                });
                (outcome, path)
            }
            Query::List(list) => (
                pages::list_all(client, list, may_lag).await,
                list.url_path(),
            ),
        };
        match outcome {
            Ok(objects) => Ok(Some(objects)),
            Err(RequestError::Refused(e)) if e.status.code == 404 => {
                Ok(is_absent(&e, self.query).then(Vec::new))
            }
            Err(failure) => Err(client.to_store_error(failure, &path, false).await),
        }
    }

    async fn get(&self, client: &ApiClient, path: &str) -> Result<Value, RequestError> {
        let version = match &self.freshness {
            Freshness::Latest => None,
            // The API server would report a revision that is not a number as an internal error.
            Freshness::Since(revision) => revision.resource_version().parse::<u64>().ok(),
            Freshness::Cached => Some(0),
        };
        let cache = version.map(|version| Cache {
            version,
            time_limit: CACHE_TIME_LIMIT,
        });
        let request = if self.revision_only {
            ApiRequest::get_metadata(path)
        } else {
            ApiRequest::get(path)
        };
        client.send(&request.with_cache(cache)).await
    }
}

/// Returns true if a 404 is the API server's response that the requested object is missing.
fn is_absent(refusal: &ApiStatusError, query: &Query) -> bool {
    let Query::Get(location) = query else {
        return false;
    };
    refusal.status.is_not_found() && refusal.status.details.name == location.name
}

pub(super) fn is_in_group(group: ApiGroup, query: &Query) -> bool {
    resource_and_path(query)
        .is_some_and(|(resource, _)| resource.api_version == group.api_version())
}

fn resource_and_path(query: &Query) -> Option<(Resource, String)> {
    match query {
        Query::Nothing => None,
        Query::Get(location) => Some((location.resource, location.url_path())),
        Query::List(list) => Some((list.resource, list.url_path())),
    }
}

/// Verifies by discovery that the API server lacks the kind of a query. Call this after a 404 that
/// does not name the requested object. Fails if the API server has the kind: then a proxy may have
/// sent the 404.
pub(super) async fn verify_missing(client: &ApiClient, query: &Query) -> Result<(), StoreError> {
    let Some((resource, path)) = resource_and_path(query) else {
        return Ok(());
    };
    let failure = match discovery::lacks_kind(client, resource).await {
        Ok(true) => return Ok(()),
        Ok(false) => RequestError::Unreadable(
            "the 404 may not be from the API server, which serves this kind".into(),
        ),
        Err(failure) => failure,
    };
    Err(client.to_store_error(failure, &path, false).await)
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use libcalico::api::{IpPool, ObjectKey, ObjectSelect};
    use libcalico::store::ReadBatch;

    use super::*;

    /// Shows SEC-63.
    #[test]
    fn only_a_matching_status_proves_that_the_object_is_absent() {
        let mut batch = ReadBatch::new();
        batch.get::<IpPool>(&ObjectKey::global("p"));
        batch.list::<IpPool>(&ObjectSelect::default());
        let [get, list] = batch.ranges() else {
            panic!()
        };
        let status = |name: &str| {
            format!(
                r#"{{"kind":"Status","reason":"NotFound","details":{{"name":"{name}","kind":"ippools"}},"code":404}}"#
            )
        };
        for (range, body, expected) in [
            (get, status("p"), true),
            (get, status("other"), false),
            (get, status(""), false),
            (get, "404 page not found".into(), false),
            (get, r#"{"code":404,"details":{"name":"p"}}"#.into(), false),
            (list, status("p"), false),
        ] {
            let refusal = ApiStatusError::parse(StatusCode::NOT_FOUND, body.as_bytes(), None);
            let query = Codec::new(ApiGroup::V3).query(range).unwrap();
            assert_eq!(is_absent(&refusal, &query), expected, "{query:?} {body}");
        }
    }
}
