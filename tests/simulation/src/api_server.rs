//! Temporary.
use libcalico::store::*;
#[derive(Debug, Clone)]
pub struct ApiServer;
impl ApiServer {
    pub fn list<K: Kind>(&self, _: &K::Select) -> Vec<Entry<K>> {
        todo!()
    }
    pub fn answer(&self, _: &Range) -> Result<Vec<RawEntry>, StoreError> {
        todo!()
    }
    pub fn apply(&mut self, _: &Write) -> Result<Revision, StoreError> {
        todo!()
    }
    pub fn has_reached(&self, _: &Revision) -> bool {
        todo!()
    }
    pub fn revision(&self) -> u64 {
        todo!()
    }
}
