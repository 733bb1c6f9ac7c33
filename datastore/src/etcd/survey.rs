//! A survey of all blocks, page by page.

use libcalico::ipam::Sighting;
use libcalico::store::{Range, StoreError, Survey, sighting};

use super::{Etcd, Purpose, txn};
use crate::watch::PageSize;

impl Etcd {
    /// Calls `tell` for the blocks of each family in turn. The pages are not one snapshot, so etcd need not keep one.
    pub(super) async fn survey_blocks(
        &self,
        survey: &Survey,
        tell: &mut (dyn FnMut(Sighting) + Send),
    ) -> Result<(), StoreError> {
        for range in survey.ranges() {
            self.pages(&range, tell).await?;
        }
        Ok(())
    }

    async fn pages(&self, range: &Range, tell: &mut (dyn FnMut(Sighting) + Send)) -> Result<(), StoreError> {
        let (mut size, mut after) = (PageSize::default(), None::<Vec<u8>>);
        loop {
            let page = txn::of_page(range, after.as_deref(), size.get());
            let (pairs, more) = txn::page(&self.transact(page, Purpose::Read).await?)?;
            size.learn(pairs.len(), pairs.iter().map(|pair| pair.key().len() + pair.value().len()).sum());
            let seen = pairs.iter().filter_map(|pair| sighting(std::str::from_utf8(pair.key()).ok()?, pair.value()));
            seen.for_each(&mut *tell);
            match pairs.last() {
                Some(last) if more => after = Some(last.key().to_vec()),
                _ => return Ok(()),
            }
        }
    }
}
