//! Endpoints that do not give up addresses at once.

use std::sync::Mutex;

use libcalico::store::StoreError;

use crate::error::IpamError;
use crate::release::{Leaving, Listings};

/// Endpoints that refuse a number of times, with the addresses of all calls.
pub(crate) struct Reluctant {
    refusals: Mutex<usize>,
    asked: Mutex<Vec<Vec<Leaving>>>,
}

impl Reluctant {
    pub(crate) fn new(refusals: usize) -> Self {
        Reluctant { refusals: Mutex::new(refusals), asked: Mutex::default() }
    }

    pub(crate) fn asked(&self) -> Vec<Vec<Leaving>> {
        self.asked.lock().unwrap().clone()
    }
}

impl Listings for Reluctant {
    async fn unlist(&self, leaving: &[Leaving]) -> Result<(), IpamError> {
        self.asked.lock().unwrap().push(leaving.to_vec());
        let mut refusals = self.refusals.lock().unwrap();
        if *refusals == 0 {
            return Ok(());
        }
        *refusals -= 1;
        let cause = StoreError::Unauthorized { reason: "no".into() };
        Err(IpamError::StillListed { endpoint: "pod ns/a".into(), cause })
    }
}
