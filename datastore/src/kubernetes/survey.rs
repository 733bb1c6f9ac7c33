//! A survey of all blocks, by lists that are split into items while they arrive.

use libcalico::ipam::Sighting;
use libcalico::kubernetes::{Query, sighting_of_block};
use libcalico::store::{StoreError, Survey};

use super::failure::Failure;
use super::pages;
use super::store::Kubernetes;

impl Kubernetes {
    /// Calls `tell` for the blocks of all families, from one list: the API server cannot select the family by name.
    pub(super) async fn survey_blocks(
        &self,
        survey: &Survey,
        tell: &mut (dyn FnMut(Sighting) + Send),
    ) -> Result<(), StoreError> {
        let Some(range) = survey.ranges().into_iter().next() else { return Ok(()) };
        let query = self.transcoder().await?.query(&range)?;
        let Query::List(list) = &query else { return Ok(()) };
        let mut each = |object: &[u8]| {
            let found = sighting_of_block(object)?;
            found.filter(|found| survey.families.contains(&found.cidr().version())).into_iter().for_each(&mut *tell);
            Ok(())
        };
        match pages::each(self.client(), list, &mut each).await {
            Ok(()) => Ok(()),
            Err(Failure::Refused(refusal)) if refusal.status.code == 404 => self.expect_missing(&query).await,
            Err(failure) => Err(self.explain(failure, &list.url_path(), false).await),
        }
    }
}
