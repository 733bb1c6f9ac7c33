//! A placeholder for the embedded datastore in programs that are built without it.

use std::convert::Infallible;

use libcalico::store::{
    Answers, EndpointForm, ProfileOrigin, Range, RawEntry, ReadBatch, Revision, Sharing, Store,
    StoreError, Write, WriteError, WriteModel,
};

use crate::config::{ConfigError, LocalConfig};

/// The embedded datastore in a program without it. The type has no values.
#[derive(Debug)]
pub struct LocalDisabled(Infallible);

impl LocalDisabled {
    pub(crate) fn open(_: &LocalConfig) -> Result<Self, ConfigError> {
        Err(ConfigError::LocalNotSupported)
    }

    pub(crate) fn requests(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn identity(&self) -> Result<String, StoreError> {
        match self.0 {}
    }

    pub(crate) fn for_each_pair(
        &self,
        _: &str,
        _: &mut (dyn FnMut(&RawEntry) + Send),
    ) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn read_ranges(&self, _: &[Range]) -> Result<Vec<Vec<RawEntry>>, StoreError> {
        match self.0 {}
    }
}

impl Store for LocalDisabled {
    async fn read(&self, _: &ReadBatch) -> Result<Answers, StoreError> {
        match self.0 {}
    }

    fn write_model(&self) -> WriteModel {
        match self.0 {}
    }

    fn endpoint_form(&self) -> EndpointForm {
        match self.0 {}
    }

    fn profile_origin(&self) -> ProfileOrigin {
        match self.0 {}
    }

    fn sharing(&self) -> Sharing {
        match self.0 {}
    }

    async fn write(&self, _: &[Write]) -> Result<Vec<Revision>, WriteError> {
        match self.0 {}
    }
}
