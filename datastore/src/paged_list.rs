//! [`PagedList`]: lists objects of one kind, page by page.

use libcalico::store::{Entry, Kind, ReadBatch, Store, StoreError};

use crate::etcd::EtcdSource;
use crate::kubernetes::{ApiSource, CalicoObjects};
use crate::watch::{NextPage, ObjectChange, WatchFailure, WatchSource};
use crate::{Datastore, Local};

/// Maximum number of requests that one call of [`PagedList::next`] sends for a page.
const ATTEMPTS: u32 = 3;

/// A list of the selected objects of a kind in pages, all from one snapshot. If the server no
/// longer has the snapshot ([`WatchFailure::Expired`]), the caller must start a new list.
pub struct PagedList<'a, K: Kind>(PageSource<'a, K>);

/// The content of a page: readable and unreadable objects.
pub type ListedPage<K> = Vec<ObjectChange<Entry<K>, <K as Kind>::Key>>;

impl Datastore {
    /// Lists a selection of a kind, page by page.
    pub fn pages<K: Kind>(&self, select: K::Select) -> PagedList<'_, K> {
        PagedList(match self {
            Datastore::Etcd(etcd) => PageSource::Etcd(Pager::new(etcd.source(&select))),
            Datastore::Local(local) => PageSource::Local(local, Some(select)),
            Datastore::Kubernetes(kubernetes) => {
                PageSource::Kubernetes(Pager::new(kubernetes.source(&select)))
            }
        })
    }
}

enum PageSource<'a, K: Kind> {
    Etcd(Pager<EtcdSource<K>>),
    Kubernetes(Pager<ApiSource<CalicoObjects<K>>>),
    /// The file is local, so all selected objects are one page. The selection is `None` after the
    /// read of that page.
    Local(&'a Local, Option<K::Select>),
}

struct Pager<S: WatchSource> {
    source: Box<S>,
    token: Option<S::Token>,
    is_complete: bool,
}

impl<K: Kind> PagedList<'_, K> {
    /// Returns the next page, or `None` after the last. After an error, the next call requests the
    /// same page again, or returns `None` if the datastore is a file.
    pub async fn next(&mut self) -> Result<Option<ListedPage<K>>, WatchFailure> {
        match &mut self.0 {
            PageSource::Etcd(pager) => pager.next().await,
            PageSource::Kubernetes(pager) => pager.next().await,
            PageSource::Local(local, select) => match select.take() {
                Some(select) => list_local::<K>(local, &select).await.map(Some),
                None => Ok(None),
            },
        }
    }
}

impl<S: WatchSource> Pager<S> {
    fn new(source: S) -> Self {
        Pager {
            source: Box::new(source),
            token: None,
            is_complete: false,
        }
    }

    async fn next(&mut self) -> Result<Option<Vec<ObjectChange<S::Value, S::Key>>>, WatchFailure> {
        if self.is_complete {
            return Ok(None);
        }
        let mut attempts_left = ATTEMPTS;
        let page = loop {
            attempts_left -= 1;
            match self.source.list_in_time(self.token.clone()).await {
                Err(WatchFailure::Lost {
                    retry_after: None, ..
                }) if attempts_left > 0 => {}
                listed => break listed?,
            }
        };
        match page.next {
            NextPage::Page(token) => self.token = Some(token),
            NextPage::Watch(_) => self.is_complete = true,
        }
        Ok(Some(page.objects))
    }
}

async fn list_local<K: Kind>(
    local: &Local,
    select: &K::Select,
) -> Result<ListedPage<K>, WatchFailure> {
    let mut batch = ReadBatch::new();
    let ticket = batch.list::<K>(select);
    let answers = local
        .read(&batch)
        .await
        .map_err(|error: StoreError| WatchFailure::lost(error.to_string()))?;
    Ok(answers
        .raw_entries(&ticket)
        .iter()
        .filter_map(|raw| ObjectChange::decode(raw, &raw.path))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;
    use crate::watch::{Page, WatchStep};

    /// Scripted responses (a number and true if more pages follow, or a failure), and the tokens
    /// received.
    struct Script(VecDeque<Answer>, Vec<Option<u32>>);

    type Answer = Result<(u32, bool), WatchFailure>;

    fn lost_answer() -> Answer {
        Err(WatchFailure::lost("cut"))
    }

    fn pager(script: impl Into<VecDeque<Answer>>) -> Pager<Script> {
        Pager::new(Script(script.into(), Vec::new()))
    }

    impl WatchSource for Script {
        type Value = u32;
        type Key = ();
        type Token = u32;
        type Position = ();
        const LONGEST_SILENCE: Duration = Duration::from_secs(60);

        fn kind(&self) -> &'static str {
            "Number"
        }

        async fn list(&mut self, page: Option<u32>) -> Result<Page<Self>, WatchFailure> {
            self.1.push(page);
            let (number, more) = self.0.pop_front().unwrap()?;
            let next = if more {
                NextPage::Page(number)
            } else {
                NextPage::Watch(())
            };
            Ok(Page {
                objects: vec![ObjectChange::Upsert(number)],
                next,
            })
        }

        async fn open(&mut self, _: &()) -> Result<(), WatchFailure> {
            unreachable!("pages are listed")
        }

        async fn next(&mut self) -> Result<Option<WatchStep<Self>>, WatchFailure> {
            unreachable!("pages are listed")
        }
    }

    #[tokio::test]
    async fn lost_page_is_requested_again_at_the_same_position() {
        let mut pager = pager([
            Ok((1, true)),
            lost_answer(),
            lost_answer(),
            Ok((2, true)),
            Ok((3, false)),
        ]);
        for number in 1..=3 {
            assert_eq!(
                pager.next().await.unwrap(),
                Some(vec![ObjectChange::Upsert(number)])
            );
        }
        assert_eq!(pager.next().await.unwrap(), None);
        assert_eq!(pager.source.1, [None, Some(1), Some(1), Some(1), Some(2)]);
    }

    #[tokio::test]
    async fn unreachable_server_ends_the_list_after_the_retries() {
        let mut pager = pager([lost_answer(), lost_answer(), lost_answer(), Ok((1, false))]);
        assert_eq!(pager.next().await, Err(WatchFailure::lost("cut")));
        assert_eq!(
            pager.next().await.unwrap(),
            Some(vec![ObjectChange::Upsert(1)]),
            "a later call continues the list"
        );
    }

    #[tokio::test]
    async fn expired_or_refused_page_ends_the_list_at_once() {
        for failure in [
            WatchFailure::Expired("410".into()),
            WatchFailure::Refused("403".into()),
        ] {
            let mut pager = pager([Ok((1, true)), Err(failure.clone())]);
            assert_eq!(
                pager.next().await.unwrap(),
                Some(vec![ObjectChange::Upsert(1)])
            );
            assert_eq!(pager.next().await, Err(failure));
            assert_eq!(pager.source.1, [None, Some(1)]);
        }
    }
}
